//! How many passes a warp's access takes: banks of shared memory, sectors of global memory.

/// Reused between calls, so that nothing is cleared but the counts.
pub(crate) struct Banks {
    seen: [[u32; 32]; 32],
}

impl Banks {
    pub(crate) fn new() -> Self {
        Self { seen: [[0; 32]; 32] }
    }

    /// Passes over 32 banks of 4 bytes, and the passes that the width needs at least.
    ///
    /// A pass serves one word a bank, to any number of lanes. 64-bit accesses go by half warps and 128-bit ones by
    /// quarter warps (CUDA C++ programming guide, compute capability 5.x to 7.x; NVIDIA's GTC talks on shared memory).
    pub(crate) fn wavefronts(&mut self, addresses: &[u64; 32], mask: u32, bytes: u32) -> (u64, u64) {
        // Below 128 bytes from end to end no two words share a bank.
        let (mut low, mut high) = (u64::MAX, 0);
        for lane in crate::lanes::lanes(mask) {
            low = low.min(addresses[lane]);
            high = high.max(addresses[lane]);
        }
        if mask == u32::MAX && bytes <= 4 && high - low < 128 && low % 4 == 0 {
            return (1, 1);
        }
        let (group, words) = match bytes {
            ..=4 => (32, 1),
            8 => (16, 2),
            _ => (8, 4),
        };
        let (mut total, mut least) = (0, 0);
        for start in (0..32).step_by(group) {
            let mut counts = [0_u8; 32];
            let mut most = 0;
            for lane in (start..start + group).filter(|lane| mask >> lane & 1 != 0) {
                for part in 0..words {
                    let word = (addresses[lane] / 4) as u32 + part;
                    let bank = (word % 32) as usize;
                    let count = counts[bank] as usize;
                    if !self.seen[bank][..count].contains(&word) {
                        self.seen[bank][count] = word;
                        counts[bank] += 1;
                        most = most.max(counts[bank]);
                    }
                }
            }
            total += u64::from(most);
            least += u64::from(most > 0);
        }
        (total, least)
    }
}

/// The distinct 32-byte sectors that the lanes touch, as runs: the first sector of a run and a bit for each of 64.
#[inline(always)]
pub(crate) fn sectors(addresses: &[u64; 32], mask: u32, mut visit: impl FnMut(u64, u64)) {
    let (mut low, mut high) = (u64::MAX, 0);
    for lane in crate::lanes::lanes(mask) {
        low = low.min(addresses[lane] / 32);
        high = high.max(addresses[lane] / 32);
    }
    if mask == 0 {
        return;
    }
    if high - low < 64 {
        let mut bits = 0_u64;
        for lane in crate::lanes::lanes(mask) {
            bits |= 1 << (addresses[lane] / 32 - low);
        }
        visit(low, bits);
        return;
    }
    let mut list = [0; 32];
    let mut count = 0;
    for lane in crate::lanes::lanes(mask) {
        list[count] = addresses[lane] / 32;
        count += 1;
    }
    list[..count].sort_unstable();
    for at in 0..count {
        if at == 0 || list[at] != list[at - 1] {
            visit(list[at], 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lane's address.
    type Address = fn(u64) -> u64;

    #[test]
    fn wavefronts_by_hand() {
        let mut banks = Banks::new();
        // (address of a lane, mask, bytes, passes, least)
        let cases: [(Address, u32, u32, u64, u64); 12] = [
            (|lane| lane * 4, u32::MAX, 4, 1, 1),
            (|_| 64, u32::MAX, 4, 1, 1),
            (|lane| lane * 8, u32::MAX, 4, 2, 1),
            (|lane| lane * 128, u32::MAX, 4, 32, 1),
            (|lane| lane * 132, u32::MAX, 4, 1, 1),
            (|lane| lane * 2, u32::MAX, 2, 1, 1),
            (|lane| lane * 128, 0x0f, 4, 4, 1),
            (|lane| lane * 8, u32::MAX, 8, 2, 2),
            (|lane| lane * 16, u32::MAX, 16, 4, 4),
            (|lane| lane * 128, u32::MAX, 16, 32, 4),
            (|lane| lane * 256, u32::MAX, 8, 32, 2),
            (|lane| lane * 16, 0xff, 16, 1, 1),
        ];
        for (index, (address, mask, bytes, total, least)) in cases.into_iter().enumerate() {
            let addresses = std::array::from_fn(|lane| address(lane as u64));
            assert_eq!(
                banks.wavefronts(&addresses, mask, bytes),
                (total, least),
                "case {index}"
            );
        }
    }

    #[test]
    fn sectors_by_hand() {
        let cases: [(Address, u32, u64); 8] = [
            (|lane| lane * 4096, 0x8001, 2),
            (|lane| lane / 2 * 4096, 0x7, 2),
            (|lane| lane * 4, u32::MAX, 4),
            (|lane| lane * 4 + 4, u32::MAX, 5),
            (|lane| lane * 32, u32::MAX, 32),
            (|lane| lane * 4096, u32::MAX, 32),
            (|lane| lane % 2 * 1_000_000, u32::MAX, 2),
            (|lane| lane * 4, 0, 0),
        ];
        for (address, mask, want) in cases {
            let addresses = std::array::from_fn(|lane| address(lane as u64));
            let mut found = Vec::new();
            sectors(&addresses, mask, |first, bits| {
                found.extend((0..64).filter(|at| bits >> at & 1 != 0).map(|at| first + at))
            });
            assert_eq!(found.len() as u64, want);
            assert!(found.is_sorted());
        }
    }
}
