//! A function's statements to instructions: names to slots, modifiers to variants, labels to indices.

mod access;
mod arith;
mod control;
mod float;
mod mods;
mod move_ops;
mod names;

use std::collections::HashMap;

use crate::PtxError;
use crate::ast::{Item, Operand, Routine, Statement, Variable};
use crate::counters::Pipe;
use crate::ir::{Formal, Function, Instr, Opcode, Preset, Slot};
use crate::types::{Space, Ty};
use mods::Mods;

/// Parameter bytes of a function, calls included.
const PARAM_BYTES_MAX: u64 = 4352;
/// Local bytes of one function.
pub(crate) const LOCAL_BYTES_MAX: u64 = 64 << 10;
const INSTRUCTIONS_MAX: u64 = 1 << 20;

/// What a module declares outside its functions.
pub(crate) struct Outer<'t> {
    pub variables: HashMap<&'t str, Preset>,
    /// End of each static shared variable.
    pub shared_ends: HashMap<&'t str, u64>,
    pub functions: HashMap<&'t str, usize>,
    /// Returns and parameters of each function.
    pub formals: Vec<(Vec<Formal>, Vec<Formal>)>,
    /// First byte of shared memory that no module variable has.
    pub shared_base: u64,
}

#[derive(Clone, Copy)]
enum Symbol {
    Register {
        slot: Slot,
        bits: u32,
    },
    Variable(Preset),
    /// Offset and bytes in the frame's parameter space; whether the kernel's launch filled it.
    Param {
        offset: u32,
        bytes: u32,
        kernel: bool,
    },
}

#[derive(Default)]
struct Scope<'t> {
    id: u32,
    names: HashMap<&'t str, Symbol>,
    /// `%r<30>`: slots are made when a name is used, never by the count that the text gives.
    ranges: HashMap<&'t str, (u32, u64)>,
    param_end: u64,
}

/// A label seen from a branch: it is looked for in these scopes, innermost first.
struct Pending<'t> {
    instr: usize,
    /// Index in a table's targets.
    entry: usize,
    label: &'t str,
    scopes: Vec<u32>,
    line: u32,
}

pub(super) struct Decoder<'a, 't> {
    outer: &'a Outer<'t>,
    function: Function,
    scopes: Vec<Scope<'t>>,
    scope_count: u32,
    constants: HashMap<(bool, Preset), Slot>,
    labels: HashMap<(u32, &'t str), usize>,
    tables: HashMap<&'t str, Vec<&'t str>>,
    pending: Vec<Pending<'t>>,
    names: HashMap<Slot, String>,
    param_end: u64,
    shared_end: u64,
    reads: Vec<Slot>,
    writes: Vec<Slot>,
    /// Registers of each instruction, for the search of reads before writes.
    pub(super) uses: Vec<(Vec<Slot>, Vec<Slot>)>,
    line: u32,
}

/// An instruction's parts while it is decoded.
pub(super) struct Ins<'a, 't> {
    pub mods: Mods<'t>,
    pub operands: &'a [Operand<'t>],
}

type Decoded = Result<(Opcode, Pipe), PtxError>;

pub(crate) fn decode<'t>(
    routine: &Routine<'t>,
    index: usize,
    outer: &Outer<'t>,
) -> Result<Function, PtxError> {
    let mut decoder = Decoder::new(routine, index, outer);
    let Some(items) = &routine.body else {
        return Err(PtxError::Syntax {
            line: routine.line,
            what: format!("function {} has no body", routine.name),
        });
    };
    for item in items {
        decoder.item(item)?;
    }
    decoder.finish()
}

/// Offsets of formals, one after the other from `at`.
pub(crate) fn layout(formals: &[Variable<'_>], at: &mut u64) -> Result<Vec<Formal>, PtxError> {
    let mut placed = Vec::new();
    for formal in formals {
        let offset = at.next_multiple_of(formal.align);
        let end = offset.saturating_add(formal.bytes);
        limit(formal.line, "the size of all parameters", end, PARAM_BYTES_MAX)?;
        *at = end;
        placed.push(Formal {
            name: formal.name.to_owned(),
            offset: offset as u32,
            bytes: formal.bytes as u32,
            align: formal.align as u32,
        });
    }
    Ok(placed)
}

pub(crate) fn limit(line: u32, what: &str, value: u64, most: u64) -> Result<(), PtxError> {
    if value <= most {
        Ok(())
    } else {
        Err(PtxError::Limit {
            line,
            what: what.to_owned(),
            value,
            most,
        })
    }
}

impl<'a, 't> Decoder<'a, 't> {
    fn new(routine: &Routine<'t>, index: usize, outer: &'a Outer<'t>) -> Self {
        let (returns, params) = outer.formals[index].clone();
        let end = |list: &[Formal]| list.last().map_or(0, |last| last.offset + last.bytes);
        let formal_bytes = end(&params).max(end(&returns));
        let mut scope = Scope::default();
        for (variable, formal) in routine
            .returns
            .iter()
            .zip(&returns)
            .chain(routine.params.iter().zip(&params))
        {
            let kernel = routine.entry;
            scope.names.insert(
                variable.name,
                Symbol::Param {
                    offset: formal.offset,
                    bytes: formal.bytes,
                    kernel,
                },
            );
        }
        Self {
            outer,
            function: Function {
                name: routine.name.to_owned(),
                entry: routine.entry,
                code: Vec::new(),
                words: 0,
                wides: 0,
                preds: 0,
                presets: Vec::new(),
                watched: Vec::new(),
                params,
                param_bytes: formal_bytes,
                formal_bytes,
                local_bytes: 0,
                shared_end: 0,
                uses_dynamic: false,
                calls: Vec::new(),
                maxntid: routine.maxntid,
            },
            scopes: vec![scope],
            scope_count: 1,
            constants: HashMap::new(),
            labels: HashMap::new(),
            tables: HashMap::new(),
            pending: Vec::new(),
            names: HashMap::new(),
            param_end: u64::from(formal_bytes).next_multiple_of(16),
            shared_end: outer.shared_base,
            reads: Vec::new(),
            writes: Vec::new(),
            uses: Vec::new(),
            line: routine.line,
        }
    }

    pub(super) fn error(&self, what: impl Into<String>) -> PtxError {
        PtxError::Syntax {
            line: self.line,
            what: what.into(),
        }
    }

    fn scope(&mut self) -> &mut Scope<'t> {
        self.scopes
            .last_mut()
            .expect("the outermost scope is never closed: braces are balanced")
    }

    fn item(&mut self, item: &Item<'t>) -> Result<(), PtxError> {
        match item {
            Item::Open => {
                let (id, param_end) = (self.scope_count, self.param_end);
                self.scope_count += 1;
                self.scopes.push(Scope {
                    id,
                    param_end,
                    ..Scope::default()
                });
            }
            Item::Close => {
                let closed = self.scopes.pop().expect("the parser balances braces");
                self.param_end = closed.param_end;
            }
            Item::Registers {
                ty,
                name,
                count,
                line,
            } => {
                self.line = *line;
                let bits = ty.bits();
                if bits == 8 {
                    return Err(self.error("registers of 8 bits; allowed: pred, 16, 32 and 64 bits"));
                }
                match count {
                    Some(count) => {
                        self.scope().ranges.insert(name, (bits, *count));
                    }
                    None => {
                        let slot = self.fresh(bits, name);
                        self.scope().names.insert(name, Symbol::Register { slot, bits });
                    }
                }
            }
            Item::Variable(variable) => self.variable(variable)?,
            Item::Label(name, line) => {
                let (id, at) = (self.scope().id, self.function.code.len());
                if self.labels.insert((id, name), at).is_some() {
                    self.line = *line;
                    return Err(self.error(format!("label `{name}` stands twice")));
                }
            }
            Item::Targets { label, targets } => {
                self.tables.insert(label, targets.clone());
            }
            Item::Statement(statement) => self.statement(statement)?,
        }
        Ok(())
    }

    fn variable(&mut self, variable: &Variable<'t>) -> Result<(), PtxError> {
        let line = variable.line;
        let symbol = match variable.space {
            Space::Param => {
                let offset = self.param_end.next_multiple_of(variable.align);
                let end = offset.saturating_add(variable.bytes);
                limit(line, "the size of all parameters", end, PARAM_BYTES_MAX)?;
                self.param_end = end;
                self.function.param_bytes = self.function.param_bytes.max(end as u32);
                Symbol::Param {
                    offset: offset as u32,
                    bytes: variable.bytes as u32,
                    kernel: false,
                }
            }
            Space::Local => {
                let offset = u64::from(self.function.local_bytes).next_multiple_of(variable.align);
                let end = offset.saturating_add(variable.bytes);
                limit(line, "the size of local variables", end, LOCAL_BYTES_MAX)?;
                self.function.local_bytes = end as u32;
                Symbol::Variable(Preset::Local(offset))
            }
            Space::Shared if self.function.entry => {
                let offset = self.shared_end.next_multiple_of(variable.align);
                let end = offset.saturating_add(variable.bytes);
                limit(line, "the size of shared variables", end, crate::SHARED_BYTES_MAX)?;
                self.shared_end = end;
                self.function.shared_end = end;
                Symbol::Variable(Preset::Shared(offset))
            }
            space => {
                self.line = line;
                return Err(self.error(format!("a variable of space {space} inside a function")));
            }
        };
        self.scope().names.insert(variable.name, symbol);
        Ok(())
    }

    fn statement(&mut self, statement: &Statement<'t>) -> Result<(), PtxError> {
        self.line = statement.line;
        limit(
            self.line,
            "the number of instructions",
            self.function.code.len() as u64 + 1,
            INSTRUCTIONS_MAX,
        )?;
        let mut ins = Ins {
            mods: Mods::new(statement.opcode, statement.line),
            operands: &statement.operands,
        };
        let guard = match statement.guard {
            Some((name, negated)) => Some((self.pred_named(name)?, negated)),
            None => None,
        };
        let (op, pipe) = self.op(&mut ins)?;
        ins.mods.finish()?;
        self.function.code.push(Instr {
            op,
            guard,
            line: statement.line,
            pipe,
            checks: Box::default(),
            marks: Box::default(),
        });
        self.uses
            .push((std::mem::take(&mut self.reads), std::mem::take(&mut self.writes)));
        Ok(())
    }

    fn op(&mut self, ins: &mut Ins<'_, 't>) -> Decoded {
        match ins.mods.name() {
            "add" | "sub" | "addc" | "subc" | "mul" | "mad" | "madc" | "fma" | "min" | "max" | "neg"
            | "abs" => self.arithmetic(ins),
            "div" | "rem" | "rcp" | "sqrt" | "rsqrt" | "ex2" | "lg2" | "sin" | "cos" | "tanh"
            | "copysign" | "testp" => self.function_of_float(ins),
            "and" | "or" | "xor" | "not" | "cnot" | "shl" | "shr" | "lop3" | "prmt" | "shf" | "bfe"
            | "bfi" | "bfind" | "clz" | "popc" | "brev" | "dp4a" | "dp2a" => self.bits(ins),
            "mov" | "selp" | "setp" | "set" | "cvt" | "cvta" | "isspacep" => self.moves(ins),
            "ld" | "ldu" | "st" | "atom" | "red" | "prefetch" | "prefetchu" | "membar" | "fence" => {
                self.access(ins)
            }
            _ => self.control(ins),
        }
    }

    fn finish(mut self) -> Result<Function, PtxError> {
        // Running past the last instruction returns; so do labels at the end.
        self.function.code.push(Instr {
            op: Opcode::Return,
            guard: None,
            line: self.line,
            pipe: Pipe::Control,
            checks: Box::default(),
            marks: Box::default(),
        });
        self.uses.push(Default::default());
        for pending in std::mem::take(&mut self.pending) {
            self.line = pending.line;
            let found = pending
                .scopes
                .iter()
                .find_map(|scope| self.labels.get(&(*scope, pending.label)));
            let Some(at) = found.copied() else {
                return Err(PtxError::UnknownName {
                    line: pending.line,
                    name: pending.label.to_owned(),
                });
            };
            match &mut self.function.code[pending.instr].op {
                Opcode::Branch { target, .. } => *target = at as u32,
                Opcode::Table { targets, .. } => targets[pending.entry] = at as u32,
                _ => unreachable!("only branches wait for labels"),
            }
        }
        crate::flow::complete(&mut self.function, &self.uses, &self.names);
        Ok(self.function)
    }

    /// Exactly `N` operands.
    pub(super) fn args<'o, const N: usize>(
        &self,
        ins: &Ins<'o, 't>,
    ) -> Result<&'o [Operand<'t>; N], PtxError> {
        ins.operands.try_into().map_err(|_| {
            self.error(format!(
                "`{}` has {} operands, allowed: {N}",
                ins.mods.opcode(),
                ins.operands.len()
            ))
        })
    }

    pub(super) fn bad_type(&self, ins: &Ins<'_, 't>, ty: Ty) -> PtxError {
        self.error(format!("`{}` does not work on {ty:?}", ins.mods.opcode()))
    }
}
