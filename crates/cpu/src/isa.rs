//! Which instructions the kernels use: found once, nameable, and forceable for tests.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

/// A set of kernels. All sets give the same bits for quantised weights; they differ in speed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Intel AMX int8 tiles for many rows, AVX-512 VNNI for few.
    AmxInt8,
    /// AVX-512 (F, BW, VL, DQ) with VNNI.
    Avx512Vnni,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// NEON with the dot-product instructions of Armv8.2 (`sdot`).
    NeonDot,
    /// NEON, which every 64-bit Arm processor has.
    Neon,
    /// Plain Rust on any machine.
    Portable,
}

/// An instruction set this machine does not have, or an unknown name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("instruction set `{asked}` cannot be used here; available: {available}")]
pub struct IsaError {
    /// What was asked for.
    pub asked: String,
    /// What there is, best first.
    pub available: String,
}

impl Isa {
    /// All sets, best first.
    pub const ALL: [Isa; 6] = [
        Isa::AmxInt8,
        Isa::Avx512Vnni,
        Isa::Avx2,
        Isa::NeonDot,
        Isa::Neon,
        Isa::Portable,
    ];

    /// Name, as printed and as accepted by [`FromStr`].
    pub const fn name(self) -> &'static str {
        match self {
            Isa::AmxInt8 => "amx-int8",
            Isa::Avx512Vnni => "avx512-vnni",
            Isa::Avx2 => "avx2",
            Isa::NeonDot => "neon-dot",
            Isa::Neon => "neon",
            Isa::Portable => "portable",
        }
    }

    /// The best set of this machine.
    pub fn detect() -> Isa {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| Isa::available()[0])
    }

    /// The sets of this machine, best first; the last is always [`Isa::Portable`].
    pub fn available() -> Vec<Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_available()).collect()
    }

    /// Whether this machine can run this set.
    pub fn is_available(self) -> bool {
        match self {
            Isa::AmxInt8 => Isa::Avx512Vnni.is_available() && x86::amx(),
            Isa::Avx512Vnni => x86::avx512_vnni(),
            Isa::Avx2 => x86::avx2(),
            Isa::NeonDot => arm::neon_dot(),
            Isa::Neon => cfg!(target_arch = "aarch64"),
            Isa::Portable => true,
        }
    }

    /// This set, if the machine can run it.
    ///
    /// # Errors
    /// When it cannot.
    pub fn require(self) -> Result<Isa, IsaError> {
        if self.is_available() {
            return Ok(self);
        }
        Err(IsaError::new(self.name()))
    }
}

impl IsaError {
    fn new(asked: &str) -> Self {
        let names: Vec<_> = Isa::available().iter().map(|isa| isa.name()).collect();
        IsaError {
            asked: asked.to_owned(),
            available: names.join(", "),
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Isa {
    type Err = IsaError;

    fn from_str(text: &str) -> Result<Self, IsaError> {
        Isa::ALL
            .into_iter()
            .find(|isa| isa.name() == text)
            .ok_or_else(|| IsaError::new(text))
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{__cpuid_count, _xgetbv};
    use std::sync::OnceLock;

    pub fn avx2() -> bool {
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
    }

    pub fn avx512_vnni() -> bool {
        avx2()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vnni")
    }

    /// Tiles need three consents: the processor's (CPUID leaf 7), the kernel's for the machine (XCR0), and the kernel's
    /// for this process (`arch_prctl`), which is asked for here once and holds for all threads made later.
    pub fn amx() -> bool {
        static AMX: OnceLock<bool> = OnceLock::new();
        *AMX.get_or_init(|| cpu_has_tiles() && request_tile_data())
    }

    fn cpu_has_tiles() -> bool {
        const AMX_TILE: u32 = 1 << 24;
        const AMX_INT8: u32 = 1 << 25;
        const XCR0_TILES: u64 = 0b11 << 17;
        if !is_x86_feature_detected!("xsave") {
            return false;
        }
        let features = __cpuid_count(7, 0).edx;
        if features & AMX_TILE == 0 || features & AMX_INT8 == 0 {
            return false;
        }
        xcr0() & XCR0_TILES == XCR0_TILES
    }

    fn xcr0() -> u64 {
        #[target_feature(enable = "xsave")]
        fn read() -> u64 {
            // SAFETY: register 0 exists wherever the OS has enabled XSAVE, which the caller has checked.
            unsafe { _xgetbv(0) }
        }
        // SAFETY: the caller has checked for XSAVE.
        unsafe { read() }
    }

    #[cfg(target_os = "linux")]
    fn request_tile_data() -> bool {
        const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
        const XFEATURE_XTILEDATA: libc::c_long = 18;
        // SAFETY: asks the kernel for leave to use a processor state; touches no memory of ours.
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
    }

    #[cfg(not(target_os = "linux"))]
    fn request_tile_data() -> bool {
        false
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod x86 {
    pub fn avx2() -> bool {
        false
    }
    pub fn avx512_vnni() -> bool {
        false
    }
    pub fn amx() -> bool {
        false
    }
}

mod arm {
    #[cfg(target_arch = "aarch64")]
    pub fn neon_dot() -> bool {
        std::arch::is_aarch64_feature_detected!("dotprod")
    }

    #[cfg(not(target_arch = "aarch64"))]
    pub fn neon_dot() -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for isa in Isa::ALL {
            assert_eq!(isa.name().parse::<Isa>(), Ok(isa));
        }
        let error = "mmx".parse::<Isa>().expect_err("no such set");
        assert!(error.to_string().contains("portable"), "{error}");
    }

    #[test]
    fn portable_is_always_there_and_last() {
        assert_eq!(Isa::available().last(), Some(&Isa::Portable));
        assert!(Isa::detect().require().is_ok());
    }
}
