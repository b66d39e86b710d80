//! The architectures that rows are built for, and the limits of each.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What a row is built for: machine code of one architecture, or PTX that a driver compiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arch {
    /// Volta: V100.
    #[serde(rename = "sm_70")]
    Sm70,
    /// Turing: T4, RTX 20.
    #[serde(rename = "sm_75")]
    Sm75,
    /// Ampere: A100.
    #[serde(rename = "sm_80")]
    Sm80,
    /// Ampere: RTX 30, A40.
    #[serde(rename = "sm_86")]
    Sm86,
    /// Ada: RTX 40, L40.
    #[serde(rename = "sm_89")]
    Sm89,
    /// Hopper: H100, H200.
    #[serde(rename = "sm_90")]
    Sm90,
    /// PTX of Volta's level, which every later driver can compile and the interpreter runs.
    #[serde(rename = "compute_70")]
    Compute70,
}

impl Arch {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Sm70,
        Self::Sm75,
        Self::Sm80,
        Self::Sm86,
        Self::Sm89,
        Self::Sm90,
        Self::Compute70,
    ];

    /// NVRTC's name of it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sm70 => "sm_70",
            Self::Sm75 => "sm_75",
            Self::Sm80 => "sm_80",
            Self::Sm86 => "sm_86",
            Self::Sm89 => "sm_89",
            Self::Sm90 => "sm_90",
            Self::Compute70 => "compute_70",
        }
    }

    /// Whether it is PTX and not machine code.
    pub const fn is_ptx(self) -> bool {
        matches!(self, Self::Compute70)
    }

    /// Compute capability times ten: 70 for Volta.
    pub const fn sm(self) -> u32 {
        match self {
            Self::Sm70 | Self::Compute70 => 70,
            Self::Sm75 => 75,
            Self::Sm80 => 80,
            Self::Sm86 => 86,
            Self::Sm89 => 89,
            Self::Sm90 => 90,
        }
    }

    /// The machine code that a device of this compute capability runs, if rows are built for it. Machine code runs on
    /// later minor versions of its major one, but here each device gets its own or none.
    pub fn of_device(sm: u32) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|arch| !arch.is_ptx() && arch.sm() == sm)
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Arch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = Self::ALL.map(Self::name).join(", ");
        Self::ALL
            .into_iter()
            .find(|arch| arch.name() == text)
            .ok_or(format!("architecture `{text}`, allowed: {names}"))
    }
}
