//! PTX's scalar types and state spaces.

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Ty {
    Pred,
    Bits(u32),
    Unsigned(u32),
    Signed(u32),
    F16,
    F16x2,
    F32,
    F64,
}

impl Ty {
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "pred" => Self::Pred,
            "b8" => Self::Bits(8),
            "b16" => Self::Bits(16),
            "b32" => Self::Bits(32),
            "b64" => Self::Bits(64),
            "u8" => Self::Unsigned(8),
            "u16" => Self::Unsigned(16),
            "u32" => Self::Unsigned(32),
            "u64" => Self::Unsigned(64),
            "s8" => Self::Signed(8),
            "s16" => Self::Signed(16),
            "s32" => Self::Signed(32),
            "s64" => Self::Signed(64),
            "f16" => Self::F16,
            "f16x2" => Self::F16x2,
            "f32" => Self::F32,
            "f64" => Self::F64,
            _ => return None,
        })
    }

    pub(crate) fn bits(self) -> u32 {
        match self {
            Self::Pred => 1,
            Self::Bits(bits) | Self::Unsigned(bits) | Self::Signed(bits) => bits,
            Self::F16 => 16,
            Self::F16x2 | Self::F32 => 32,
            Self::F64 => 64,
        }
    }

    pub(crate) fn is_signed(self) -> bool {
        matches!(self, Self::Signed(_))
    }

    pub(crate) fn is_integer(self) -> bool {
        matches!(self, Self::Bits(_) | Self::Unsigned(_) | Self::Signed(_))
    }
}

/// Where an address points.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Space {
    /// Device memory, shared by all blocks.
    Global,
    /// One block's memory.
    Shared,
    /// One thread's stack.
    Local,
    /// The module's constants.
    Const,
    /// Parameters of kernels and calls.
    Param,
    /// An address that names its space by its window.
    Generic,
}

impl std::fmt::Display for Space {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Global => "global",
            Self::Shared => "shared",
            Self::Local => "local",
            Self::Const => "const",
            Self::Param => "param",
            Self::Generic => "generic",
        })
    }
}
