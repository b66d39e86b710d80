//! What can be wrong with PTX text or with the arguments of a launch.

use thiserror::Error;

/// An error in PTX text, in what a launch asks for, or in what the host does to device memory.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PtxError {
    /// The text does not follow PTX's grammar.
    #[error("line {line}: {what}")]
    Syntax {
        /// Line of the text, from 1.
        line: u32,
        /// What was found and what may stand there.
        what: String,
    },
    /// An instruction that this interpreter does not know.
    #[error("line {line}: unknown instruction `{opcode}`")]
    UnknownOpcode {
        /// Line of the text, from 1.
        line: u32,
        /// The instruction with its modifiers.
        opcode: String,
    },
    /// A modifier that this interpreter does not know for this instruction.
    #[error("line {line}: unknown modifier `.{modifier}` of `{opcode}`")]
    UnknownModifier {
        /// Line of the text, from 1.
        line: u32,
        /// The instruction with its modifiers.
        opcode: String,
        /// The modifier.
        modifier: String,
    },
    /// A name that nothing declares.
    #[error("line {line}: `{name}` is not declared")]
    UnknownName {
        /// Line of the text, from 1.
        line: u32,
        /// The name.
        name: String,
    },
    /// A limit that the text goes past.
    #[error("line {line}: {what} is {value}, allowed: at most {most}")]
    Limit {
        /// Line of the text, from 1.
        line: u32,
        /// What is too large.
        what: String,
        /// Its size.
        value: u64,
        /// The largest allowed.
        most: u64,
    },
    /// Arguments that do not fit a kernel's parameters.
    #[error("kernel {kernel}: {what}")]
    Arguments {
        /// The kernel.
        kernel: String,
        /// The parameter, its size, and the argument's.
        what: String,
    },
    /// Device memory ran out.
    #[error("allocation `{name}` of {bytes} bytes: {used} of {most} bytes are in use")]
    OutOfMemory {
        /// The allocation's name.
        name: String,
        /// Bytes asked for.
        bytes: u64,
        /// Bytes in use.
        used: u64,
        /// All bytes there are.
        most: u64,
    },
    /// The host touched device memory that it must not touch.
    #[error("host access: {what}")]
    Host {
        /// Address, size, allocation.
        what: String,
    },
}
