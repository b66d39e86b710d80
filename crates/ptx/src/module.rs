//! A parsed module: kernels, constants, global variables.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::PtxError;
use crate::ast::{Init, Routine, Unit, Variable};
use crate::decode::{self, Outer};
use crate::ir::{Formal, Function, Preset};
use crate::memory::Memory;
use crate::types::Space;

/// Shared memory of one block on Volta.
pub(crate) const SHARED_BYTES_MAX: u64 = 96 << 10;
const CONST_BYTES_MAX: u64 = 64 << 10;
const TEXT_BYTES_MAX: u64 = 256 << 20;

/// PTX text, decoded.
#[derive(Debug)]
pub struct Module {
    id: u64,
    text: String,
    functions: Vec<Function>,
    kernels: Vec<Kernel>,
    constants: Vec<u8>,
    globals: Vec<Global>,
}

#[derive(Debug)]
struct Global {
    name: String,
    bytes: u64,
    /// Offset, width and value.
    init: Vec<(u64, u32, Value)>,
}

#[derive(Debug)]
enum Value {
    Bits(u64),
    /// The address of another global variable.
    Address(u32, i64),
}

/// What a kernel asks of a launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// Its name.
    pub name: String,
    /// Its parameters in order.
    pub params: Vec<Param>,
    /// Static shared memory.
    pub shared_bytes: u32,
    /// Whether it uses dynamic shared memory.
    pub uses_dynamic_shared: bool,
    /// Launch bounds along x, y, z.
    pub maxntid: Option<[u32; 3]>,
    /// Virtual registers that the kernel itself names. The machine's are fewer: this tells code apart, not occupancy.
    pub registers: u32,
    params_bytes: u32,
    index: usize,
}

/// A kernel's parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Param {
    /// Its name in the text.
    pub name: String,
    /// Where it lies among the parameters.
    pub offset: u32,
    /// Its bytes.
    pub bytes: u32,
    /// Its alignment.
    pub align: u32,
}

/// An argument of a launch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arg<'a> {
    /// A device address.
    Ptr(u64),
    /// `unsigned`
    U32(u32),
    /// `int`
    I32(i32),
    /// `float`
    F32(f32),
    /// `unsigned long long`
    U64(u64),
    /// A structure by value.
    Bytes(&'a [u8]),
}

impl Kernel {
    /// Lays arguments out as the kernel takes them.
    ///
    /// # Errors
    /// If the number of arguments or the size of one is not the kernel's.
    pub fn params(&self, args: &[Arg<'_>]) -> Result<Vec<u8>, PtxError> {
        let error = |what| PtxError::Arguments {
            kernel: self.name.clone(),
            what,
        };
        if args.len() != self.params.len() {
            return Err(error(format!(
                "{} arguments, allowed: {}",
                args.len(),
                self.params.len()
            )));
        }
        let mut bytes = vec![0; self.params_bytes as usize];
        for (index, (arg, param)) in args.iter().zip(&self.params).enumerate() {
            let value: &[u8] = match arg {
                Arg::Ptr(value) | Arg::U64(value) => &value.to_le_bytes(),
                Arg::U32(value) => &value.to_le_bytes(),
                Arg::I32(value) => &value.to_le_bytes(),
                Arg::F32(value) => &value.to_le_bytes(),
                Arg::Bytes(value) => value,
            };
            if value.len() != param.bytes as usize {
                let what = format!(
                    "argument {index} has {} bytes, {} takes {}",
                    value.len(),
                    param.name,
                    param.bytes
                );
                return Err(error(what));
            }
            bytes[param.offset as usize..][..value.len()].copy_from_slice(value);
        }
        Ok(bytes)
    }
}

impl Module {
    /// Reads PTX text as NVRTC writes it for compute_70.
    ///
    /// # Errors
    /// At the first thing that is no PTX, or that this interpreter does not know, with its line.
    pub fn parse(text: &str) -> Result<Self, PtxError> {
        static MODULES: AtomicU64 = AtomicU64::new(0);
        decode::limit(1, "the text's size", text.len() as u64, TEXT_BYTES_MAX)?;
        let tokens = crate::lex::lex(text)?;
        let unit = crate::syntax::parse(&tokens)?;
        let routines = routines(&unit)?;
        let (outer, constants, globals) = outer(&unit, &routines)?;
        let mut functions = Vec::new();
        for (index, routine) in routines.iter().enumerate() {
            functions.push(decode::decode(routine, index, &outer)?);
        }
        let mut module = Self {
            id: MODULES.fetch_add(1, Relaxed),
            text: text.to_owned(),
            functions,
            kernels: Vec::new(),
            constants,
            globals,
        };
        module.kernels = module.list();
        Ok(module)
    }

    /// The kernels' names in the order of the text.
    pub fn kernels(&self) -> impl Iterator<Item = &str> {
        self.kernels.iter().map(|kernel| kernel.name.as_str())
    }

    /// A kernel by name.
    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernels.iter().find(|kernel| kernel.name == name)
    }

    fn list(&self) -> Vec<Kernel> {
        let param = |formal: &Formal| Param {
            name: formal.name.clone(),
            offset: formal.offset,
            bytes: formal.bytes,
            align: formal.align,
        };
        let entries = self
            .functions
            .iter()
            .enumerate()
            .filter(|(_, function)| function.entry);
        entries
            .map(|(index, function)| {
                let (shared_end, uses_dynamic_shared) = self.shared_of(index);
                let presets = function.presets.len() as u32;
                Kernel {
                    name: function.name.clone(),
                    params: function.params.iter().map(param).collect(),
                    shared_bytes: shared_end as u32,
                    uses_dynamic_shared,
                    maxntid: function.maxntid,
                    registers: function.words + function.wides + function.preds - presets,
                    params_bytes: function.formal_bytes,
                    index,
                }
            })
            .collect()
    }

    pub(crate) fn index(&self, kernel: &str) -> Option<usize> {
        self.kernel(kernel).map(|kernel| kernel.index)
    }

    pub(crate) fn functions(&self) -> &[Function] {
        &self.functions
    }

    pub(crate) fn constants(&self) -> &[u8] {
        &self.constants
    }

    /// A line of the text, from 1.
    pub(crate) fn line(&self, line: u32) -> &str {
        self.text
            .lines()
            .nth(line.saturating_sub(1) as usize)
            .unwrap_or_default()
            .trim()
    }

    /// End of the static shared memory that a kernel and what it calls name, and whether they use dynamic memory.
    pub(crate) fn shared_of(&self, index: usize) -> (u64, bool) {
        let mut seen = HashSet::from([index]);
        let mut open = vec![index];
        let (mut end, mut dynamic) = (0, false);
        while let Some(at) = open.pop() {
            let function = &self.functions[at];
            end = end.max(function.shared_end);
            dynamic |= function.uses_dynamic;
            open.extend(function.calls.iter().filter(|call| seen.insert(**call)));
        }
        (end, dynamic)
    }

    /// Addresses of the module's global variables; they are made when a module first runs with a memory.
    pub(crate) fn place_globals(&self, memory: &mut Memory) -> Result<Vec<u64>, PtxError> {
        if let Some((_, addresses)) = memory.statics.iter().find(|(id, _)| *id == self.id) {
            return Ok(addresses.clone());
        }
        let mut addresses = Vec::new();
        for global in &self.globals {
            let address = memory.alloc(&global.name, global.bytes as usize)?;
            memory.mark_initialised(address, global.bytes as usize)?;
            addresses.push(address);
        }
        for (global, address) in self.globals.iter().zip(&addresses) {
            for (offset, width, value) in &global.init {
                let bits = match value {
                    Value::Bits(bits) => *bits,
                    Value::Address(index, by) => addresses[*index as usize].wrapping_add_signed(*by),
                };
                memory.write(address + offset, &bits.to_le_bytes()[..*width as usize])?;
            }
        }
        memory.statics.push((self.id, addresses.clone()));
        Ok(addresses)
    }
}

/// Functions with a body, each name once; a declaration needs its definition.
fn routines<'t>(unit: &Unit<'t>) -> Result<Vec<Routine<'t>>, PtxError> {
    let mut defined = HashSet::new();
    for routine in unit.routines.iter().filter(|routine| routine.body.is_some()) {
        if !defined.insert(routine.name) {
            let what = format!("function {} is defined twice", routine.name);
            return Err(PtxError::Syntax {
                line: routine.line,
                what,
            });
        }
    }
    if let Some(missing) = unit
        .routines
        .iter()
        .find(|routine| !defined.contains(routine.name))
    {
        return Err(PtxError::UnknownName {
            line: missing.line,
            name: missing.name.to_owned(),
        });
    }
    Ok(unit
        .routines
        .iter()
        .filter(|routine| routine.body.is_some())
        .cloned()
        .collect())
}

type Parts<'t> = (Outer<'t>, Vec<u8>, Vec<Global>);

fn outer<'t>(unit: &Unit<'t>, routines: &[Routine<'t>]) -> Result<Parts<'t>, PtxError> {
    let mut outer = Outer {
        variables: HashMap::new(),
        shared_ends: HashMap::new(),
        functions: HashMap::new(),
        formals: Vec::new(),
        shared_base: 0,
    };
    let mut constants = Vec::new();
    let mut globals = Vec::new();
    for variable in &unit.variables {
        let preset = match variable.space {
            Space::Const => Preset::Const(constant(variable, &mut constants)?),
            Space::Shared if variable.external => Preset::Dynamic(0),
            Space::Shared => {
                let offset = outer.shared_base.next_multiple_of(variable.align);
                let end = offset.saturating_add(variable.bytes);
                decode::limit(
                    variable.line,
                    "the size of shared variables",
                    end,
                    SHARED_BYTES_MAX,
                )?;
                outer.shared_base = end;
                outer.shared_ends.insert(variable.name, end);
                Preset::Shared(offset)
            }
            Space::Global => {
                globals.push(variable);
                Preset::Global(globals.len() as u32 - 1, 0)
            }
            space => {
                let what = format!("a variable of space {space} outside a function");
                return Err(PtxError::Syntax {
                    line: variable.line,
                    what,
                });
            }
        };
        outer.variables.insert(variable.name, preset);
    }
    for (index, routine) in routines.iter().enumerate() {
        let mut end = 0;
        let returns = decode::layout(&routine.returns, &mut end)?;
        let params = decode::layout(&routine.params, &mut end)?;
        outer.functions.insert(routine.name, index);
        outer.formals.push((returns, params));
    }
    let globals = globals
        .into_iter()
        .map(|variable| global(variable, &outer))
        .collect::<Result<_, _>>()?;
    Ok((outer, constants, globals))
}

fn constant(variable: &Variable<'_>, constants: &mut Vec<u8>) -> Result<u64, PtxError> {
    let offset = (constants.len() as u64).next_multiple_of(variable.align);
    let end = offset.saturating_add(variable.bytes);
    decode::limit(variable.line, "the size of constants", end, CONST_BYTES_MAX)?;
    constants.resize(end as usize, 0);
    let width = (variable.element.bits() / 8).max(1) as usize;
    for (index, value) in variable.init.iter().enumerate() {
        let Init::Bits(bits) = value else {
            let what = format!("constant {} holds an address", variable.name);
            return Err(PtxError::Syntax {
                line: variable.line,
                what,
            });
        };
        constants[offset as usize + index * width..][..width].copy_from_slice(&bits.to_le_bytes()[..width]);
    }
    Ok(offset)
}

fn global(variable: &Variable<'_>, outer: &Outer<'_>) -> Result<Global, PtxError> {
    let width = (variable.element.bits() / 8).max(1);
    let mut init = Vec::new();
    for (index, value) in variable.init.iter().enumerate() {
        let value = match value {
            Init::Bits(bits) => Value::Bits(*bits),
            Init::Address(name, offset) => match outer.variables.get(name) {
                Some(Preset::Global(index, 0)) if width == 8 => Value::Address(*index, *offset),
                _ => {
                    return Err(PtxError::UnknownName {
                        line: variable.line,
                        name: (*name).to_owned(),
                    });
                }
            },
        };
        init.push((index as u64 * u64::from(width), width, value));
    }
    Ok(Global {
        name: variable.name.to_owned(),
        bytes: variable.bytes,
        init,
    })
}
