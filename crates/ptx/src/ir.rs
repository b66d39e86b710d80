//! What runs: instructions with their registers already resolved to slots.
//!
//! A function has three banks: words (32 bits and less), wides (64 bits) and predicates (one bit a lane). Immediates,
//! special registers and the addresses of variables are slots too, filled before the first instruction.

use crate::counters::Pipe;
pub(crate) use crate::operators::*;
use crate::types::{Space, Ty};

/// A slot of the word bank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct R(pub u32);
/// A slot of the wide bank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct D(pub u32);
/// A slot of the predicate bank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct P(pub u32);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Slot {
    Word(R),
    Wide(D),
    Pred(P),
}

/// What fills a slot before a function runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Preset {
    Bits(u64),
    Special(Special),
    /// Offset in the module's constants.
    Const(u64),
    /// A module variable in global memory, by index, and an offset.
    Global(u32, i64),
    /// Offset in the block's static shared memory.
    Shared(u64),
    /// Where dynamic shared memory begins, and an offset.
    Dynamic(i64),
    /// Offset in the frame's part of local memory.
    Local(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    Lane,
    Warp,
    Warps,
    LaneMask(LaneMask),
    DynamicBytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum LaneMask {
    Eq,
    Lt,
    Le,
    Gt,
    Ge,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Addr {
    pub base: Slot,
    pub offset: i64,
}

#[derive(Debug, Clone)]
pub(crate) struct Compare {
    pub ty: Ty,
    pub cmp: Cmp,
    pub flush: bool,
    pub a: Slot,
    pub b: Slot,
    /// Combined with the predicate, negated if so told.
    pub combine: Option<(Logic, P, bool)>,
    pub out: CompareOut,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum CompareOut {
    /// The result and its complement (for f16x2: of the low and of the high half).
    Preds(Option<P>, Option<P>),
    /// All ones, 1.0f or, for f16x2, a 1.0 a half.
    Word(R, SetAs),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SetAs {
    Ones(u32),
    F32,
    F16,
    F16x2,
}

#[derive(Debug, Clone)]
pub(crate) struct Access {
    pub space: Space,
    /// A parameter of the kernel itself, the same for all threads.
    pub kernel_param: bool,
    pub addr: Addr,
    /// Bits of each register: values are extended to it.
    pub register_bits: u32,
    /// Bits an element.
    pub bits: u32,
    pub signed: bool,
    /// Destinations of a load, `None` for `_`; sources of a store.
    pub slots: Vec<Option<Slot>>,
}

impl Access {
    /// Bytes a lane.
    pub(crate) fn bytes(&self) -> u32 {
        self.bits / 8 * self.slots.len() as u32
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AtomOp {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
    Exchange,
    CompareSwap,
    Increment,
    Decrement,
}

#[derive(Debug, Clone)]
pub(crate) struct Atomic {
    pub op: AtomOp,
    pub ty: Ty,
    pub space: Space,
    pub addr: Addr,
    pub d: Option<Slot>,
    pub b: Slot,
    pub c: Option<Slot>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShuffleMode {
    Up,
    Down,
    Butterfly,
    Index,
}

#[derive(Debug, Clone)]
pub(crate) struct Shuffle {
    pub mode: ShuffleMode,
    pub d: R,
    pub valid: Option<P>,
    pub a: R,
    pub b: R,
    pub c: R,
    pub mask: R,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VoteMode {
    All,
    Any,
    Uniform,
    Ballot,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reduce {
    And,
    Or,
    Count,
}

#[derive(Debug, Clone)]
pub(crate) struct Barrier {
    pub id: R,
    pub threads: Option<R>,
    pub arrive: bool,
    pub reduce: Option<(Reduce, P, bool, Slot)>,
}

#[derive(Debug, Clone)]
pub(crate) struct Mma {
    pub a_columns: bool,
    pub b_columns: bool,
    /// f32 accumulators in 8 words, or f16 pairs in 4.
    pub wide_c: bool,
    pub wide_d: bool,
    pub a: [R; 2],
    pub b: [R; 2],
    pub c: Vec<R>,
    pub d: Vec<R>,
}

#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub function: usize,
    /// (offset here, offset there, bytes) in the frames' parameter space.
    pub arguments: Vec<(u32, u32, u32)>,
    pub results: Vec<(u32, u32, u32)>,
}

#[derive(Debug, Clone)]
pub(crate) enum Opcode {
    Nop,
    Bin16(Bin, R, R, R),
    Bin32(Bin, R, R, R),
    Bin64(Bin, D, D, D),
    Shift16(Shift, R, R, R),
    Shift32(Shift, R, R, R),
    Shift64(Shift, D, D, R),
    Un16(Un, R, R),
    Un32(Un, R, R),
    Un64(Un, D, D),
    Count32(Count, R, R),
    Count64(Count, R, D),
    Mad16(Half, R, R, R, R),
    Mad32(Half, R, R, R, R),
    Mad64(Half, D, D, D, D),
    /// 16 x 16 to 32 bits, plus c.
    MadWide16 {
        signed: bool,
        d: R,
        a: R,
        b: R,
        c: Option<R>,
    },
    MadWide32 {
        signed: bool,
        d: D,
        a: R,
        b: R,
        c: Option<D>,
    },
    /// a + b or a - b with the carry flag.
    Carry32 {
        subtract: bool,
        uses: bool,
        sets: bool,
        d: R,
        a: R,
        b: R,
    },
    Carry64 {
        subtract: bool,
        uses: bool,
        sets: bool,
        d: D,
        a: D,
        b: D,
    },
    CarryMad32 {
        half: Half,
        uses: bool,
        sets: bool,
        d: R,
        a: R,
        b: R,
        c: R,
    },
    Lop3 {
        d: R,
        a: R,
        b: R,
        c: R,
        table: u8,
    },
    Permute {
        mode: PermuteMode,
        d: R,
        a: R,
        b: R,
        c: R,
    },
    Funnel {
        left: bool,
        clamp: bool,
        d: R,
        a: R,
        b: R,
        c: R,
    },
    Extract32 {
        signed: bool,
        d: R,
        a: R,
        at: R,
        count: R,
    },
    Extract64 {
        signed: bool,
        d: D,
        a: D,
        at: R,
        count: R,
    },
    Insert32 {
        d: R,
        a: R,
        b: R,
        at: R,
        count: R,
    },
    Insert64 {
        d: D,
        a: D,
        b: D,
        at: R,
        count: R,
    },
    Dot4 {
        a_signed: bool,
        b_signed: bool,
        d: R,
        a: R,
        b: R,
        c: R,
    },
    Dot2 {
        a_signed: bool,
        b_signed: bool,
        high: bool,
        d: R,
        a: R,
        b: R,
        c: R,
    },
    Mov32(R, R),
    Mov64(D, D),
    MovPred(P, P, bool),
    Logic(Logic, P, P, P),
    Pack16(R, R, R),
    Unpack16(Option<R>, Option<R>, R),
    Pack32(D, R, R),
    Unpack32(Option<R>, Option<R>, D),
    Pack4x16(D, [R; 4]),
    Unpack4x16([Option<R>; 4], D),
    Select32(R, R, R, P, bool),
    Select64(D, D, D, P, bool),
    Compare(Box<Compare>),
    F32Bin(FBin, Finish, R, R, R),
    F32Fma(Finish, R, R, R, R),
    F32Un(FUn, Finish, R, R),
    F64Bin(FBin, D, D, D),
    F64Fma(D, D, D, D),
    F64Un(FUn, D, D),
    /// `pairs`: both halves of a word.
    HalfBin {
        op: FBin,
        pairs: bool,
        flush: bool,
        saturate: bool,
        d: R,
        a: R,
        b: R,
    },
    HalfFma {
        pairs: bool,
        flush: bool,
        saturate: bool,
        relu: bool,
        d: R,
        a: R,
        b: R,
        c: R,
    },
    HalfUn {
        op: FUn,
        pairs: bool,
        d: R,
        a: R,
    },
    Approximate {
        fun: Approx,
        flush: bool,
        d: R,
        a: R,
        b: Option<R>,
    },
    TestFinite {
        ty: Ty,
        test: Test,
        d: P,
        a: Slot,
    },
    Convert {
        to: Ty,
        from: Ty,
        integral: bool,
        finish: Finish,
        d: Slot,
        a: Slot,
        d_bits: u32,
    },
    Load(Box<Access>),
    Store(Box<Access>),
    Atomic(Box<Atomic>),
    IsSpace(Space, P, D),
    Fence,
    Branch {
        target: u32,
        rejoin: u32,
    },
    Table {
        index: R,
        targets: Box<[u32]>,
        rejoin: u32,
    },
    Call(Box<Call>),
    Return,
    Exit,
    Trap,
    Barrier(Box<Barrier>),
    WarpBarrier(R),
    Shuffle(Box<Shuffle>),
    Vote {
        mode: VoteMode,
        d: Slot,
        a: P,
        negated: bool,
        mask: R,
    },
    Match {
        all: bool,
        d: R,
        same: Option<P>,
        a: Slot,
        mask: R,
    },
    ActiveMask(R),
    Mma(Box<Mma>),
}

#[derive(Debug, Clone)]
pub(crate) struct Instr {
    pub op: Opcode,
    pub guard: Option<(P, bool)>,
    pub line: u32,
    pub pipe: Pipe,
    /// Registers that may be read before they are written: looked at when the instruction runs.
    pub checks: Box<[u32]>,
    /// Registers among those anywhere checked that this one writes.
    pub marks: Box<[u32]>,
}

#[derive(Debug)]
pub(crate) struct Function {
    pub name: String,
    pub entry: bool,
    pub code: Vec<Instr>,
    pub words: u32,
    pub wides: u32,
    pub preds: u32,
    pub presets: Vec<(Slot, Preset)>,
    /// Registers watched for reads before writes, with their names; `checks` and `marks` index this.
    pub watched: Vec<(Slot, String)>,
    /// Offset, bytes, alignment of each formal in the frame's parameter space.
    pub params: Vec<Formal>,
    pub param_bytes: u32,
    /// Of `params` alone.
    pub formal_bytes: u32,
    pub local_bytes: u32,
    /// Static shared memory that the function names, as an end offset.
    pub shared_end: u64,
    pub uses_dynamic: bool,
    pub calls: Vec<usize>,
    pub maxntid: Option<[u32; 3]>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Formal {
    pub name: String,
    pub offset: u32,
    pub bytes: u32,
    pub align: u32,
}
