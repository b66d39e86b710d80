//! What a kernel does wrong, with where it did.

use std::fmt;

use crate::types::Space;

/// The first fault of a launch: of its lowest faulting block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// What went wrong.
    pub kind: FaultKind,
    /// The kernel launched.
    pub kernel: String,
    /// Line of the PTX text, from 1; 0 if no instruction is at fault.
    pub line: u32,
    /// The instruction as it stands in the text.
    pub text: String,
    /// Index of the block.
    pub block: [u32; 3],
    /// Index of the thread (the first of those at fault) in its block.
    pub thread: [u32; 3],
}

/// Where an address lies: in an allocation, or beside one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The allocation's name.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
    /// The address less the allocation's first; negative before it.
    pub offset: i64,
}

/// The classes of faults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FaultKind {
    /// The launch asks for what cannot be: no such kernel, wrong parameters, too many threads.
    Launch(String),
    /// An access outside every allocation.
    OutOfBounds {
        /// Memory space.
        space: Space,
        /// The address.
        address: u64,
        /// Bytes of the access.
        bytes: u32,
        /// The nearest allocation.
        near: Option<Place>,
    },
    /// An access to memory that was freed.
    UseAfterFree {
        /// The address.
        address: u64,
        /// What it was.
        place: Place,
    },
    /// A read of bytes that nothing wrote.
    Uninitialised {
        /// Memory space.
        space: Space,
        /// The address.
        address: u64,
        /// Bytes of the access.
        bytes: u32,
        /// Where it lies.
        place: Option<Place>,
    },
    /// A read of a register that nothing wrote.
    UnwrittenRegister {
        /// The register's name.
        register: String,
    },
    /// An address that is not a multiple of the access's size.
    Misaligned {
        /// Memory space.
        space: Space,
        /// The address.
        address: u64,
        /// Bytes of the access, all elements of a vector together.
        bytes: u32,
        /// Where it lies.
        place: Option<Place>,
    },
    /// Two threads touch the same shared memory with no barrier between.
    SharedRace {
        /// Address in shared memory.
        address: u64,
        /// What this thread does.
        access: RaceAccess,
        /// What the other thread did.
        other_access: RaceAccess,
        /// The other thread's number in the block; none if several.
        other: Option<u32>,
    },
    /// A barrier that some threads do not come to.
    DivergentBarrier {
        /// Which threads are missing and why.
        what: String,
    },
    /// A shuffle, vote or warp barrier whose mask is not the set of lanes that run it.
    WarpMask {
        /// The mask given.
        mask: u32,
        /// The lanes that run the instruction.
        active: u32,
        /// The lanes that have not left the kernel.
        live: u32,
    },
    /// A shuffle that takes a value from a lane that does not take part.
    ShuffleSource {
        /// The lane read.
        source: u32,
        /// The lanes that run the instruction.
        active: u32,
    },
    /// Integer division or remainder by zero.
    DivisionByZero,
    /// A warp ran more instructions than allowed.
    StepsExceeded {
        /// The limit.
        most: u64,
    },
    /// Calls or local variables past the stack.
    StackOverflow {
        /// Bytes or calls, and the limit.
        what: String,
    },
    /// An instruction whose result PTX leaves open, which the options do not allow.
    NotReproducible,
    /// `trap`.
    Trap,
    /// A branch table's index past its end.
    TableIndex {
        /// The index.
        index: u32,
        /// Targets in the table.
        targets: u32,
    },
    /// Something that this interpreter does not do.
    Unsupported(String),
}

/// How shared memory was touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RaceAccess {
    /// A load.
    Read,
    /// A store.
    Write,
    /// An atomic.
    Atomic,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` ({} bytes) at offset {}",
            self.name, self.bytes, self.offset
        )
    }
}

fn at(place: &Option<Place>) -> String {
    place
        .as_ref()
        .map_or_else(String::new, |place| format!(", {place}"))
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Launch(what) | Self::Unsupported(what) => f.write_str(what),
            Self::OutOfBounds {
                space,
                address,
                bytes,
                near,
            } => {
                write!(
                    f,
                    "{bytes} bytes at {space} address 0x{address:x} are outside every allocation"
                )?;
                near.as_ref()
                    .map_or(Ok(()), |near| write!(f, "; nearest is {near}"))
            }
            Self::UseAfterFree { address, place } => write!(f, "address 0x{address:x} was freed: {place}"),
            Self::Uninitialised {
                space,
                address,
                bytes,
                place,
            } => {
                write!(
                    f,
                    "{bytes} bytes at {space} address 0x{address:x} are read but never written{}",
                    at(place)
                )
            }
            Self::UnwrittenRegister { register } => {
                write!(f, "register {register} is read but never written")
            }
            Self::Misaligned {
                space,
                address,
                bytes,
                place,
            } => {
                write!(
                    f,
                    "{space} address 0x{address:x} is no multiple of the access's {bytes} bytes{}",
                    at(place)
                )
            }
            Self::SharedRace {
                address,
                access,
                other_access,
                other,
            } => {
                let other = other.map_or("another thread".to_owned(), |other| format!("thread {other}"));
                write!(
                    f,
                    "{access:?} of shared address 0x{address:x} races with a {other_access:?} of {other}: no barrier between"
                )
            }
            Self::DivergentBarrier { what } => write!(f, "divergent barrier: {what}"),
            Self::WarpMask { mask, active, live } => {
                write!(
                    f,
                    "mask 0x{mask:08x} is not the lanes that run this: 0x{active:08x} of live 0x{live:08x}"
                )
            }
            Self::ShuffleSource { source, active } => {
                write!(
                    f,
                    "a value is taken from lane {source}, which is not among the active 0x{active:08x}"
                )
            }
            Self::DivisionByZero => f.write_str("integer division by zero"),
            Self::StepsExceeded { most } => {
                write!(f, "a warp ran more than {most} instructions: it may hang")
            }
            Self::StackOverflow { what } => write!(f, "stack overflow: {what}"),
            Self::NotReproducible => {
                f.write_str("an approximate instruction: its result is not reproducible")
            }
            Self::Trap => f.write_str("trap"),
            Self::TableIndex { index, targets } => write!(f, "branch index {index} of {targets} targets"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernel {}", self.kernel)?;
        if self.line > 0 {
            let ([x, y, z], [i, j, k]) = (self.block, self.thread);
            write!(
                f,
                ", line {} `{}`, block ({x},{y},{z}), thread ({i},{j},{k})",
                self.line, self.text
            )?;
        }
        write!(f, ": {}", self.kind)
    }
}

impl std::error::Error for Fault {}

/// A fault inside a warp, before its place is known.
#[derive(Debug)]
pub(crate) struct Stop {
    pub kind: FaultKind,
    pub lane: u32,
}

impl Stop {
    pub(crate) fn new(kind: FaultKind, lane: u32) -> Box<Self> {
        Box::new(Self { kind, lane })
    }
}

/// What an instruction gives.
pub(crate) type Outcome<T = ()> = Result<T, Box<Stop>>;
