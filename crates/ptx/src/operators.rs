//! The operators of arithmetic instructions.

use crate::rounding::Round;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bin {
    Add,
    Sub,
    Mul,
    MulHighU,
    MulHighS,
    MinU,
    MinS,
    MaxU,
    MaxS,
    And,
    Or,
    Xor,
    DivU,
    DivS,
    RemU,
    RemS,
    AddSat,
    SubSat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shift {
    Left,
    RightU,
    RightS,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Un {
    Not,
    Neg,
    Abs,
    Cnot,
    Reverse,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Count {
    Ones,
    LeadingZeros,
    /// The highest bit that differs from the sign; as a shift amount or as a position.
    Find {
        signed: bool,
        shift: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Half {
    Low,
    HighU,
    HighS,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FBin {
    Add,
    Sub,
    Mul,
    Div,
    Min { strict: bool },
    Max { strict: bool },
    Copysign,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FUn {
    Neg,
    Abs,
    Sqrt,
    Reciprocal,
}

/// How a float result is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Finish {
    pub round: Round,
    pub flush: bool,
    pub saturate: bool,
}

impl Finish {
    pub(crate) const PLAIN: Self = Self {
        round: Round::Nearest,
        flush: false,
        saturate: false,
    };
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cmp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    /// The same, true too if a side is not a number.
    Equ,
    Neu,
    Ltu,
    Leu,
    Gtu,
    Geu,
    Num,
    Nan,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Logic {
    And,
    Or,
    Xor,
}

/// Instructions without a reproducible result in PTX.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Approx {
    Exp2,
    Log2,
    Sin,
    Cos,
    Tanh,
    Reciprocal,
    Sqrt,
    ReciprocalSqrt,
    Divide,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PermuteMode {
    Index,
    ForwardFour,
    BackwardFour,
    Replicate8,
    EdgeLeft,
    EdgeRight,
    Replicate16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Test {
    Finite,
    Infinite,
    Number,
    NotANumber,
    Normal,
    Subnormal,
}
