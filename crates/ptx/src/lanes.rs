//! Registers of a warp as 32 lanes side by side, and memory that each lane has of its own.

/// One register of 32 threads.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Words(pub [u32; 32]);

/// One 64-bit register of 32 threads.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Wides(pub [u64; 32]);

/// Bytes to or from memory: up to 16 a lane.
pub(crate) type Data = [[u32; 32]; 4];

/// The set bits' places, lowest first.
#[inline(always)]
pub(crate) fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    (0..32).filter(move |lane| mask >> lane & 1 != 0)
}

/// Stack or parameters: the same addresses for each lane, with contents of its own.
#[derive(Debug, Default)]
pub(crate) struct LaneMemory {
    words: Vec<[u32; 32]>,
    /// For each byte of a word the lanes that wrote it.
    written: Vec<[u32; 4]>,
}

impl LaneMemory {
    /// At least `bytes` bytes from here on.
    pub(crate) fn reserve(&mut self, bytes: u32) {
        let words = bytes.div_ceil(4) as usize;
        if self.words.len() < words {
            self.words.resize(words, [0; 32]);
            self.written.resize(words, [0; 4]);
        }
    }

    /// Forgets what lanes wrote in a range of whole words.
    pub(crate) fn forget(&mut self, from: u32, bytes: u32, mask: u32) {
        let (from, to) = (from as usize / 4, (from + bytes).div_ceil(4) as usize);
        for byte in self.written[from..to].iter_mut().flatten() {
            *byte &= !mask;
        }
    }

    /// The address is aligned and inside. Whether all bytes are written.
    pub(crate) fn load(&self, lane: usize, address: u64, bytes: u32, to: &mut Data) -> bool {
        let at = (address / 4) as usize;
        if bytes < 4 {
            let byte = (address % 4) as usize;
            to[0][lane] = self.words[at][lane] >> (byte * 8) & (u32::MAX >> (32 - bytes * 8));
            return self.written[at][byte..byte + bytes as usize]
                .iter()
                .all(|lanes| lanes >> lane & 1 != 0);
        }
        let mut all = true;
        for (word, to) in to.iter_mut().enumerate().take((bytes / 4) as usize) {
            to[lane] = self.words[at + word][lane];
            let [a, b, c, d] = self.written[at + word];
            all &= (a & b & c & d) >> lane & 1 != 0;
        }
        all
    }

    pub(crate) fn store(&mut self, lane: usize, address: u64, bytes: u32, from: &Data) {
        let at = (address / 4) as usize;
        if bytes < 4 {
            let byte = (address % 4) as usize;
            let mask = (u32::MAX >> (32 - bytes * 8)) << (byte * 8);
            let word = &mut self.words[at][lane];
            *word = *word & !mask | from[0][lane] << (byte * 8) & mask;
            for lanes in &mut self.written[at][byte..byte + bytes as usize] {
                *lanes |= 1 << lane;
            }
            return;
        }
        for (word, from) in from.iter().enumerate().take((bytes / 4) as usize) {
            self.words[at + word][lane] = from[lane];
            for lanes in &mut self.written[at + word] {
                *lanes |= 1 << lane;
            }
        }
    }

    /// Copies bytes between two frames' parameters, all masked lanes.
    pub(crate) fn copy(from: &Self, at: u32, to: &mut Self, to_at: u32, bytes: u32, mask: u32) {
        for byte in 0..bytes {
            let (source, target) = ((at + byte) as usize, (to_at + byte) as usize);
            let written = from.written[source / 4][source % 4];
            let seen = &mut to.written[target / 4][target % 4];
            *seen = *seen & !mask | written & mask;
            for lane in lanes(mask) {
                let value = from.words[source / 4][lane] >> (source % 4 * 8) & 0xff;
                let word = &mut to.words[target / 4][lane];
                *word = *word & !(0xff << (target % 4 * 8)) | value << (target % 4 * 8);
            }
        }
    }
}
