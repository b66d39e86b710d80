//! A cubin's resources, read by ourselves: registers, shared memory, stack, and the code.
//!
//! A cubin is a 64-bit ELF file of machine 190. What is read, as found in files of NVRTC 12.9 and held against
//! `cuobjdump --dump-resource-usage`:
//! - the code is section `.text.SYMBOL`; bits 24..32 of its `sh_info` are the registers a thread;
//! - `.nv.info` has records `format u8, attribute u8, then by format: nothing, one or two bytes, or u16 length and that
//!   many bytes`; REGCOUNT (0x2f), FRAME_SIZE (0x11), MIN_STACK_SIZE (0x12) and MAX_STACK_SIZE (0x23) hold pairs of a symbol's index and a number;
//! - `.nv.info.SYMBOL` has MAX_THREADS (0x05): three numbers, of `__launch_bounds__`; and a KPARAM_INFO (0x17) for each
//!   parameter: a zero word, its number u16, its offset u16, a word with its size in the bits from 18;
//! - static shared memory is the size of `.nv.shared.SYMBOL`, thread-local memory that of
//!   `.nv.local.SYMBOL`.

use crate::arch::Arch;

const MACHINE_CUDA: u16 = 190;
const SECTION_HEADER_BYTES: usize = 64;
const SYMBOL_BYTES: usize = 24;
const TYPE_NOBITS: u32 = 8;

const ATTRIBUTE_MAX_THREADS: u8 = 0x05;
const ATTRIBUTE_FRAME_SIZE: u8 = 0x11;
const ATTRIBUTE_MIN_STACK_SIZE: u8 = 0x12;
const ATTRIBUTE_MAX_STACK_SIZE: u8 = 0x23;
const ATTRIBUTE_PARAMETER: u8 = 0x17;
const ATTRIBUTE_REGCOUNT: u8 = 0x2f;

/// On Hopper the section counts what the system takes for itself, if the kernel has shared memory at all.
const SHARED_RESERVED: u32 = 1024;

/// What one kernel takes, by its file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Registers a thread, as allocated.
    pub registers: u32,
    /// Shared memory that the source declares with a size, in bytes.
    pub shared_static: u32,
    /// Bytes of stack a thread: spilled registers and arrays that have no register.
    pub stack: u32,
    /// Bytes of `.nv.local`.
    pub local: u32,
    /// Threads a block by the launch bound; 0 if it has none.
    pub threads_max: u32,
    /// Bytes of each parameter.
    pub parameters: Vec<u32>,
}

impl Resources {
    /// Memory of each thread's own, which a kernel of ours never has.
    pub fn spilled(&self) -> u32 {
        self.stack + self.local
    }
}

/// A cubin's one kernel.
pub struct Cubin<'a> {
    /// What it takes.
    pub resources: Resources,
    /// Its machine code.
    pub code: &'a [u8],
}

/// Reads the kernel `symbol` of a cubin made for `arch`.
///
/// # Errors
/// Anything that is not such a file, in words.
pub fn read<'a>(bytes: &'a [u8], symbol: &str, arch: Arch) -> Result<Cubin<'a>, String> {
    let file = Elf::new(bytes)?;
    let sm = file.flags & 0xff;
    if sm != arch.sm() {
        return Err(format!("made for sm_{sm}, wanted {arch}"));
    }
    let text = file
        .section(&format!(".text.{symbol}"))?
        .ok_or("no code of this name")?;
    let code = file.contents(&text)?;
    if code.is_empty() || code.len() % 16 != 0 {
        return Err(format!("code of {} bytes, allowed: a multiple of 16", code.len()));
    }
    let mut resources = Resources {
        registers: text.info >> 24,
        ..Resources::default()
    };
    let size = |prefix: &str| -> Result<u32, String> {
        let section = file.section(&format!("{prefix}{symbol}"))?;
        let bytes = section.map_or(0, |section| section.bytes);
        u32::try_from(bytes).map_err(|_| format!("{prefix}: {bytes} bytes"))
    };
    let reserved = if arch == Arch::Sm90 { SHARED_RESERVED } else { 0 };
    resources.shared_static = size(".nv.shared.")?.saturating_sub(reserved);
    resources.local = size(".nv.local.")?;
    if let Some(section) = file.section(".nv.info")? {
        let index = file.symbol(symbol)?;
        for (attribute, value) in records(file.contents(&section)?)? {
            let pair = [word(value, 0), word(value, 4)];
            let [Some(of), Some(number)] = pair else { continue };
            if of != index {
                continue;
            }
            match attribute {
                ATTRIBUTE_REGCOUNT => resources.registers = resources.registers.max(number),
                ATTRIBUTE_FRAME_SIZE | ATTRIBUTE_MIN_STACK_SIZE | ATTRIBUTE_MAX_STACK_SIZE => {
                    resources.stack = resources.stack.max(number);
                }
                _ => {}
            }
        }
    }
    let mut parameters = Vec::new();
    if let Some(section) = file.section(&format!(".nv.info.{symbol}"))? {
        for (attribute, value) in records(file.contents(&section)?)? {
            if attribute == ATTRIBUTE_MAX_THREADS {
                let product = [0, 4, 8]
                    .iter()
                    .try_fold(1u32, |all, at| all.checked_mul(word(value, *at)?));
                resources.threads_max = product.ok_or("MAX_THREADS is not three small numbers")?;
            }
            if attribute == ATTRIBUTE_PARAMETER {
                let number = half(value, 4).ok_or("a parameter is cut off")?;
                parameters.push((number, word(value, 8).ok_or("a parameter is cut off")? >> 18));
            }
        }
    }
    parameters.sort_unstable();
    resources.parameters = parameters.into_iter().map(|(_, bytes)| bytes).collect();
    Ok(Cubin { resources, code })
}

/// The attributes of an info section.
fn records(mut bytes: &[u8]) -> Result<Vec<(u8, &[u8])>, String> {
    let mut all = Vec::new();
    while let [format, attribute, rest @ ..] = bytes {
        let (value, after) = match format {
            1 => (&rest[..0], rest),
            // One or two bytes of value, padded to two.
            2 | 3 => rest.split_at_checked(2).ok_or("an attribute is cut off")?,
            4 => {
                let (length, rest) = rest.split_first_chunk::<2>().ok_or("an attribute is cut off")?;
                rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))
                    .ok_or("an attribute is cut off")?
            }
            other => return Err(format!("attribute format {other}, allowed: 1 to 4")),
        };
        all.push((*attribute, value));
        bytes = after;
        // Records start at multiples of four; formats 1 has two bytes of padding.
        if *format == 1 {
            bytes = bytes.get(2..).unwrap_or_default();
        }
    }
    Ok(all)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..)?
        .first_chunk::<4>()
        .map(|chunk| u32::from_le_bytes(*chunk))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes
        .get(at..)?
        .first_chunk::<2>()
        .map(|chunk| u16::from_le_bytes(*chunk))
}

fn long(bytes: &[u8], at: usize) -> Option<usize> {
    let number = bytes
        .get(at..)?
        .first_chunk::<8>()
        .map(|chunk| u64::from_le_bytes(*chunk))?;
    usize::try_from(number).ok()
}

struct Elf<'a> {
    bytes: &'a [u8],
    headers: &'a [u8],
    names: &'a [u8],
    flags: u32,
}

#[derive(Clone, Copy)]
struct Section {
    name: u32,
    kind: u32,
    offset: usize,
    bytes: usize,
    link: u32,
    info: u32,
}

impl<'a> Elf<'a> {
    fn new(bytes: &'a [u8]) -> Result<Self, String> {
        if !bytes.starts_with(b"\x7fELF\x02\x01") {
            return Err("not a 64-bit little-endian ELF file".to_owned());
        }
        let cut = "the header is cut off";
        let machine = half(bytes, 18).ok_or(cut)?;
        if machine != MACHINE_CUDA {
            return Err(format!("machine {machine}, allowed: {MACHINE_CUDA}"));
        }
        let start = long(bytes, 40).ok_or(cut)?;
        let flags = word(bytes, 48).ok_or(cut)?;
        let (size, count, names) = (half(bytes, 58), half(bytes, 60), half(bytes, 62));
        let (Some(size), Some(count), Some(names)) = (size, count, names) else {
            return Err(cut.to_owned());
        };
        if usize::from(size) != SECTION_HEADER_BYTES {
            return Err(format!(
                "section headers of {size} bytes, allowed: {SECTION_HEADER_BYTES}"
            ));
        }
        let end = start.checked_add(usize::from(count) * SECTION_HEADER_BYTES);
        let headers = end
            .and_then(|end| bytes.get(start..end))
            .ok_or("the section headers leave the file")?;
        let mut file = Self {
            bytes,
            headers,
            names: &[],
            flags,
        };
        let section = file
            .sections()
            .nth(usize::from(names))
            .ok_or("no section of names")?;
        file.names = file.contents(&section)?;
        Ok(file)
    }

    fn sections(&self) -> impl Iterator<Item = Section> + use<'a> {
        self.headers
            .chunks_exact(SECTION_HEADER_BYTES)
            .map(|header| Section {
                name: word(header, 0).unwrap_or(0),
                kind: word(header, 4).unwrap_or(0),
                offset: long(header, 24).unwrap_or(usize::MAX),
                bytes: long(header, 32).unwrap_or(usize::MAX),
                link: word(header, 40).unwrap_or(0),
                info: word(header, 44).unwrap_or(0),
            })
    }

    fn section(&self, name: &str) -> Result<Option<Section>, String> {
        for section in self.sections() {
            if string(self.names, section.name)? == name.as_bytes() {
                return Ok(Some(section));
            }
        }
        Ok(None)
    }

    fn contents(&self, section: &Section) -> Result<&'a [u8], String> {
        if section.kind == TYPE_NOBITS {
            return Ok(&[]);
        }
        let end = section.offset.checked_add(section.bytes);
        end.and_then(|end| self.bytes.get(section.offset..end))
            .ok_or_else(|| "a section leaves the file".to_owned())
    }

    /// The index of a symbol.
    fn symbol(&self, name: &str) -> Result<u32, String> {
        let table = self.section(".symtab")?.ok_or("no symbols")?;
        let names = self
            .sections()
            .nth(table.link as usize)
            .ok_or("symbols have no names")?;
        let names = self.contents(&names)?;
        let symbols = self.contents(&table)?.chunks_exact(SYMBOL_BYTES);
        for (index, symbol) in symbols.enumerate() {
            if string(names, word(symbol, 0).unwrap_or(0))? == name.as_bytes() {
                return Ok(index as u32);
            }
        }
        Err(format!("no symbol {name}"))
    }
}

fn string(table: &[u8], at: u32) -> Result<&[u8], String> {
    let rest = table.get(at as usize..).ok_or("a name leaves its table")?;
    let end = rest
        .iter()
        .position(|byte| *byte == 0)
        .ok_or("a name has no end")?;
    Ok(&rest[..end])
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A small file as NVRTC lays it out: names, symbols, info, code, shared memory.
    pub fn sample(symbol: &str, registers: u32, stack: u32, shared: u64, code: &[u8]) -> Vec<u8> {
        let mut names = vec![0u8];
        let mut name = |text: &str| {
            let at = names.len() as u32;
            names.extend_from_slice(text.as_bytes());
            names.push(0);
            at
        };
        let mut symbols = vec![0u8; SYMBOL_BYTES * 2];
        symbols[SYMBOL_BYTES..SYMBOL_BYTES + 4].copy_from_slice(&name(symbol).to_le_bytes());
        let mut info = Vec::new();
        for (attribute, number) in [(ATTRIBUTE_REGCOUNT, registers), (ATTRIBUTE_FRAME_SIZE, stack)] {
            info.extend_from_slice(&[4, attribute, 8, 0]);
            info.extend_from_slice(&1u32.to_le_bytes());
            info.extend_from_slice(&number.to_le_bytes());
        }
        // A record without a value, one with two bytes, and the launch bound.
        let mut own = vec![1, 0x50, 0, 0, 3, 0x1b, 0xff, 0];
        own.extend_from_slice(&[4, ATTRIBUTE_MAX_THREADS, 12, 0]);
        for number in [128u32, 1, 1] {
            own.extend_from_slice(&number.to_le_bytes());
        }
        // Two parameters, the last first.
        for (number, bytes) in [(1u16, 4u32), (0, 8)] {
            own.extend_from_slice(&[4, ATTRIBUTE_PARAMETER, 12, 0, 0, 0, 0, 0]);
            own.extend_from_slice(&number.to_le_bytes());
            own.extend_from_slice(&[0, 0]);
            own.extend_from_slice(&(bytes << 18 | 0x1f000).to_le_bytes());
        }
        let table = [
            (name(".shstrtab"), 3, Vec::new(), 0, 0),
            (name(".symtab"), 2, symbols, 1, 0),
            (name(".nv.info"), 0x7000_0000, info, 0, 0),
            (name(&format!(".nv.info.{symbol}")), 0x7000_0000, own, 0, 0),
            (
                name(&format!(".text.{symbol}")),
                1,
                code.to_vec(),
                0,
                registers << 24,
            ),
            (
                name(&format!(".nv.shared.{symbol}")),
                TYPE_NOBITS,
                Vec::new(),
                0,
                0,
            ),
        ];
        let mut file = b"\x7fELF\x02\x01\x01\x33\x07".to_vec();
        file.resize(64, 0);
        file[18..20].copy_from_slice(&MACHINE_CUDA.to_le_bytes());
        file[48..52].copy_from_slice(&0x46_0546u32.to_le_bytes());
        file[58..60].copy_from_slice(&64u16.to_le_bytes());
        file[60..62].copy_from_slice(&(table.len() as u16 + 1).to_le_bytes());
        file[62..64].copy_from_slice(&1u16.to_le_bytes());
        let mut headers = vec![0u8; 64];
        for (index, (name, kind, contents, link, info)) in table.iter().enumerate() {
            let contents = if index == 0 { &names } else { contents };
            let size = if *kind == TYPE_NOBITS {
                shared
            } else {
                contents.len() as u64
            };
            let mut header = [0u8; 64];
            header[..4].copy_from_slice(&name.to_le_bytes());
            header[4..8].copy_from_slice(&u32::to_le_bytes(*kind));
            header[24..32].copy_from_slice(&(file.len() as u64).to_le_bytes());
            header[32..40].copy_from_slice(&size.to_le_bytes());
            header[40..44].copy_from_slice(&u32::to_le_bytes(*link));
            header[44..48].copy_from_slice(&info.to_le_bytes());
            file.extend_from_slice(contents);
            headers.extend_from_slice(&header);
        }
        let start = file.len() as u64;
        file[40..48].copy_from_slice(&start.to_le_bytes());
        file.extend_from_slice(&headers);
        file
    }

    #[test]
    fn resources_of_a_sample() {
        let file = sample("k", 24, 40, 1024, &[0; 32]);
        let cubin = read(&file, "k", Arch::Sm70).unwrap();
        assert_eq!(
            cubin.resources,
            Resources {
                registers: 24,
                shared_static: 1024,
                stack: 40,
                local: 0,
                threads_max: 128,
                parameters: vec![8, 4],
            }
        );
        assert_eq!((cubin.code.len(), cubin.resources.spilled()), (32, 40));
        assert!(read(&file, "other", Arch::Sm70).is_err());
        assert!(read(&file, "k", Arch::Sm75).is_err());
    }

    #[test]
    fn no_input_panics() {
        let file = sample("k", 24, 0, 0, &[0; 16]);
        for end in 0..file.len() {
            assert!(read(&file[..end], "k", Arch::Sm70).is_err(), "cut at {end}");
        }
        // Every byte turned, one at a time: any answer but a panic.
        for at in 0..file.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut turned = file.clone();
                turned[at] = value;
                let _ = read(&turned, "k", Arch::Sm70);
            }
        }
    }
}
