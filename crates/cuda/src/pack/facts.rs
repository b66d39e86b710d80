//! What the machine code of a row shows, held against what the row promises.

use crate::arch::Arch;
use crate::kernels::{Fact, KernelRow};
use crate::pack::cubin;
use crate::pack::occupancy;
use crate::pack::sass::{self, Class, Listing, Width};

/// One row's code for one architecture.
pub struct Facts {
    /// What it takes.
    pub resources: cubin::Resources,
    /// What it is made of.
    pub listing: Listing,
    /// Blocks that a multiprocessor holds, with all dynamic shared memory that the row allows.
    pub blocks: u32,
    /// Warps of these blocks.
    pub warps: u32,
    /// Broken promises, each in words.
    pub faults: Vec<String>,
}

/// Looks at machine code.
///
/// # Errors
/// It cannot be read.
pub fn look(row: &KernelRow, arch: Arch, bytes: &[u8]) -> Result<Facts, String> {
    let cubin = cubin::read(bytes, &row.symbol, arch)?;
    let listing = sass::decode(cubin.code, arch);
    let limits = occupancy::limits(arch).ok_or("PTX has no machine code")?;
    let shared = row.shared_bytes + cubin.resources.shared_static;
    let blocks = occupancy::blocks(&limits, row.threads, cubin.resources.registers, shared);
    Ok(Facts {
        faults: faults(row, arch, &cubin.resources, &listing, blocks),
        blocks,
        warps: blocks * row.threads.div_ceil(32),
        resources: cubin.resources,
        listing,
    })
}

/// Whether code may take more registers than a row's launch bounds leave, and get fewer blocks, before it spills: of the later architectures.
/// The bounds and the budget of registers are made for Volta and bind its code. (PTX spills nothing.)
pub fn relaxes(arch: Arch) -> bool {
    arch != Arch::Sm70 && !arch.is_ptx()
}

impl Facts {
    /// Whether registers go to memory.
    pub fn spills(&self) -> bool {
        spills(&self.resources, &self.listing)
    }
}

fn spills(resources: &cubin::Resources, listing: &Listing) -> bool {
    resources.spilled() > 0 || local(listing) > 0
}

fn local(listing: &Listing) -> u32 {
    listing.count(Class::Ldl) + listing.count(Class::Stl)
}

fn faults(
    row: &KernelRow,
    arch: Arch,
    resources: &cubin::Resources,
    listing: &Listing,
    blocks: u32,
) -> Vec<String> {
    let mut faults = Vec::new();
    if spills(resources, listing) {
        faults.push(format!(
            "spills: {} bytes a thread, {} local loads and stores",
            resources.spilled(),
            local(listing)
        ));
    }
    let (registers_max, min_blocks) = if relaxes(arch) {
        (255, 1)
    } else {
        (row.registers_max, row.min_blocks)
    };
    if resources.registers > registers_max {
        faults.push(format!(
            "registers: {}, allowed: {registers_max}",
            resources.registers
        ));
    }
    if blocks < min_blocks {
        faults.push(format!(
            "blocks a multiprocessor: {blocks} with {} bytes of shared memory, wanted: {min_blocks}",
            row.shared_bytes + resources.shared_static
        ));
    }
    for fact in row.requires.iter().filter(|fact| fact.applies(arch)) {
        if !holds(*fact, listing) {
            faults.push(format!("required and not found: {fact:?}"));
        }
    }
    faults
}

fn holds(fact: Fact, listing: &Listing) -> bool {
    let some = |class| listing.count(class) > 0;
    match fact {
        Fact::Hmma884 => some(Class::Hmma884),
        Fact::Ldg128 => some(Class::Ldg(Width::B128)),
        Fact::Stg128 => some(Class::Stg(Width::B128)),
        Fact::Lds128 => some(Class::Lds(Width::B128)),
        Fact::NoCall => !some(Class::Call),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selftest;

    /// HMMA.884, then the widest load, as sm_70 has them.
    const HMMA: [u64; 2] = [0x236, 0x5400];
    const LDG128: [u64; 2] = [0x381, 6 << 9];
    const LDL: [u64; 2] = [0x983, 4 << 9];
    const CALL: [u64; 2] = [0x944, 0];

    #[test]
    fn each_promise_is_held() {
        type Change = fn(&mut KernelRow);
        let plain: Change = |_| ();
        type Case<'a> = (&'a str, Change, u32, u32, u64, &'a [[u64; 2]]);
        let cases: [Case; 9] = [
            ("", plain, 64, 0, 0, &[HMMA]),
            ("Hmma884", plain, 64, 0, 0, &[LDG128]),
            ("registers", plain, 65, 0, 0, &[HMMA]),
            ("spills: 8 bytes", plain, 64, 8, 0, &[HMMA]),
            ("1 local", plain, 64, 0, 0, &[HMMA, LDL]),
            ("NoCall", plain, 64, 0, 0, &[HMMA, CALL]),
            ("blocks a multiprocessor: 3", plain, 64, 0, 25 * 1024, &[HMMA]),
            (
                "blocks a multiprocessor: 0",
                |row| row.shared_bytes = 96 * 1024,
                64,
                0,
                1,
                &[HMMA],
            ),
            ("Ldg128", |row| row.requires = &[Fact::Ldg128], 64, 0, 0, &[HMMA]),
        ];
        for (want, change, registers, stack, shared, words) in cases {
            let mut row = selftest::rows().remove(0);
            change(&mut row);
            let code: Vec<u8> = words
                .iter()
                .flatten()
                .flat_map(|word| word.to_le_bytes())
                .collect();
            let file = cubin::tests::sample(&row.symbol, registers, stack, shared, &code);
            let facts = look(&row, Arch::Sm70, &file).unwrap();
            let faults = facts.faults.join("; ");
            assert!(
                faults.contains(want) && faults.is_empty() == want.is_empty(),
                "wanted {want:?}: {faults}"
            );
        }
    }
}
