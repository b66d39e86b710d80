//! What the parser gives: a flat list of items a function, with names not yet looked up.

use crate::types::{Space, Ty};

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Operand<'t> {
    /// Register, label, symbol, special register or `_`.
    Word(&'t str),
    /// `!%p`
    Not(&'t str),
    /// An integer literal of up to 64 bits with its sign.
    Int(i128),
    F32(u32),
    F64(u64),
    /// `%r|%p`
    Pair(&'t str, &'t str),
    Vector(Vec<Operand<'t>>),
    /// `[base + offset]`; no base is an absolute address.
    Address(Option<&'t str>, i64),
    /// `symbol + offset` as a value.
    Offset(&'t str, i64),
    /// The parenthesised lists of a call.
    Group(Vec<Operand<'t>>),
}

#[derive(Debug, Clone)]
pub(crate) struct Statement<'t> {
    pub guard: Option<(&'t str, bool)>,
    pub opcode: &'t str,
    pub operands: Vec<Operand<'t>>,
    pub line: u32,
}

#[derive(Debug, Clone)]
pub(crate) struct Variable<'t> {
    pub space: Space,
    pub name: &'t str,
    pub align: u64,
    pub bytes: u64,
    /// `.extern .shared name[]`
    pub external: bool,
    pub init: Vec<Init<'t>>,
    pub element: Ty,
    pub line: u32,
}

#[derive(Debug, Clone)]
pub(crate) enum Init<'t> {
    Bits(u64),
    /// The generic address of a variable.
    Address(&'t str, i64),
}

#[derive(Debug, Clone)]
pub(crate) enum Item<'t> {
    Open,
    Close,
    Registers {
        ty: Ty,
        name: &'t str,
        count: Option<u64>,
        line: u32,
    },
    Variable(Variable<'t>),
    Label(&'t str, u32),
    Targets {
        label: &'t str,
        targets: Vec<&'t str>,
    },
    Statement(Statement<'t>),
}

#[derive(Debug, Clone)]
pub(crate) struct Routine<'t> {
    pub name: &'t str,
    pub entry: bool,
    pub params: Vec<Variable<'t>>,
    pub returns: Vec<Variable<'t>>,
    /// None for a declaration.
    pub body: Option<Vec<Item<'t>>>,
    pub maxntid: Option<[u32; 3]>,
    pub line: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Unit<'t> {
    pub variables: Vec<Variable<'t>>,
    pub routines: Vec<Routine<'t>>,
}
