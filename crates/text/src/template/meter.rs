//! Makes every operation of a template cost steps in proportion to its work.
//!
//! The engine counts instructions, the text that they make and the items that loops and filters visit. That leaves holes: a
//! list can double in one instruction, two large values can be compared in one, and a value can hold another twice, so that
//! walking it never ends. This pass closes them as a class, on the compiled instructions: before an operation whose cost
//! depends on its operands stands a call that pays for them, and after each that makes a container one that measures it.
//!
//! 1. *Pay* takes the operands, charges, and gives them back: `Call(pay, n)` makes them a list, `UnpackLists(1)` lays its items
//!    on the stack with their number on top, `DiscardTop` takes that away.
//! 2. *Hold* takes a result and gives it back as a plain list or map: lazy ones become real, so that neither laziness nor
//!    nesting (both recurse) can grow. Deeper than [`DEPTH_MAX`] is an error.
//! 3. `%` with text on its left formats, as in Python; the engine has it as a filter only.
//!
//! The names of these functions start with a zero byte, which no template can write.

use std::sync::Arc;

use minijinja::machinery::{Instruction, Instructions};
use minijinja::value::{Object, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value, context};

/// Levels of lists and maps in a value; requests may have 64.
const DEPTH_MAX: usize = 100;
/// Units in a step, as the engine has them: a byte that is read or copied is one.
const STEP: u64 = 64;
/// Units of a list's or map's item that is looked at.
const ITEM: u64 = 32;
/// Units of an item that is copied: it keeps 24 bytes.
const SLOT: u64 = 16;

/// First character of the functions' names, which the variables of a rendering must not have.
pub(super) const RESERVED: char = '\0';

/// What a call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meter {
    /// Charges for all that the operands hold.
    Deep,
    /// Charges for what containers hold; text is charged for where it is written.
    Print,
    /// Charges for what two operands can have in common: what the smaller holds.
    Compare,
    /// Charges for a lookup: for text that is looked into, and for all of a key.
    Lookup,
    /// Charges for the keys of a map's pairs.
    Keys,
    /// Charges for the operands of a method: the receiver, if it is a container, and the arguments.
    Method,
    /// Makes a result plain, which is no deeper than its operands.
    Plain,
    /// Makes a result plain, and measures its depth.
    Hold,
    /// Refuses a namespace in a namespace, which could hold itself.
    Store,
    /// `%`.
    Remainder,
}

impl Meter {
    const ALL: [Self; 10] = [
        Self::Deep,
        Self::Print,
        Self::Compare,
        Self::Lookup,
        Self::Keys,
        Self::Method,
        Self::Plain,
        Self::Hold,
        Self::Store,
        Self::Remainder,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Deep => "\0deep",
            Self::Print => "\0print",
            Self::Compare => "\0compare",
            Self::Lookup => "\0lookup",
            Self::Keys => "\0keys",
            Self::Method => "\0method",
            Self::Plain => "\0plain",
            Self::Hold => "\0hold",
            Self::Store => "\0store",
            Self::Remainder => "\0remainder",
        }
    }
}

/// A value that is nested too deeply.
#[derive(Debug)]
pub(super) struct TooDeep;

impl TooDeep {
    /// The limit, for messages.
    pub const LEVELS_MAX: u64 = DEPTH_MAX as u64;
}

impl std::fmt::Display for TooDeep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "more than {DEPTH_MAX} levels of lists and maps")
    }
}

impl std::error::Error for TooDeep {}

/// Adds the functions that rewritten instructions call.
pub(super) fn install(env: &mut Environment<'_>) {
    for meter in Meter::ALL {
        env.add_global(meter.name(), Value::from_object(meter));
    }
    // It prints every variable in one step, and nobody needs it.
    env.remove_global("debug");
}

/// The same instructions, with their costs. Jumps are moved along.
pub(super) fn rewrite<'a>(old: &Instructions<'a>) -> Instructions<'a> {
    let all = || (0..).map_while(|at| old.get(at));
    let mut places = Vec::new();
    let mut next = 0;
    for instruction in all() {
        places.push(next);
        let (before, after) = around(instruction);
        next += (before.len() + 1 + after.len()) as u32;
    }
    places.push(next);
    let mut new = Instructions::new(old.name(), old.source());
    for (at, instruction) in (0..).zip(all()) {
        let (before, after) = around(instruction);
        let moved = [moved(instruction, &places)];
        for instruction in before.into_iter().chain(moved).chain(after) {
            match (old.get_span(at), old.get_line(at)) {
                (Some(span), _) => new.add_with_span(instruction, span),
                (None, Some(line)) => new.add_with_line(instruction, u16::try_from(line).unwrap_or(u16::MAX)),
                (None, None) => new.add(instruction),
            };
        }
    }
    new
}

fn moved<'a>(instruction: &Instruction<'a>, places: &[u32]) -> Instruction<'a> {
    let mut instruction = instruction.clone();
    match &mut instruction {
        Instruction::Jump(to)
        | Instruction::Iterate(to)
        | Instruction::JumpIfFalse(to)
        | Instruction::JumpIfFalseOrPop(to)
        | Instruction::JumpIfTrueOrPop(to)
        | Instruction::BuildMacro(_, to, _) => *to = places[*to as usize],
        Instruction::Rem => instruction = Instruction::CallFunction(Meter::Remainder.name(), Some(2)),
        _ => {}
    }
    instruction
}

/// What goes before and after an instruction. One that is not named here costs the same whatever it is given, or the engine
/// charges for it in full.
fn around<'a>(instruction: &Instruction<'a>) -> (Vec<Instruction<'a>>, Vec<Instruction<'a>>) {
    let pay = |meter: Meter, count: Option<u16>| {
        let mut all = vec![
            Instruction::CallFunction(meter.name(), count),
            Instruction::UnpackLists(1),
        ];
        // Where the number of arguments is known only now, the instruction itself takes it from the stack.
        if count.is_some() {
            all.push(Instruction::DiscardTop);
        }
        all
    };
    let plain = || vec![Instruction::CallFunction(Meter::Plain.name(), Some(1))];
    let hold = || vec![Instruction::CallFunction(Meter::Hold.name(), Some(1))];
    let compare = || pay(Meter::Compare, Some(2));
    match instruction {
        Instruction::Eq
        | Instruction::Ne
        | Instruction::Gt
        | Instruction::Gte
        | Instruction::Lt
        | Instruction::Lte
        | Instruction::CompareAndPreserve(_) => (compare(), vec![]),
        Instruction::In => (pay(Meter::Deep, Some(2)), vec![]),
        Instruction::StringConcat => (pay(Meter::Print, Some(2)), vec![]),
        Instruction::Emit => (pay(Meter::Print, Some(1)), vec![]),
        Instruction::GetItem => (pay(Meter::Lookup, Some(2)), vec![]),
        Instruction::Slice => (pay(Meter::Lookup, Some(4)), plain()),
        Instruction::Add | Instruction::Mul => (vec![], plain()),
        Instruction::BuildList(_) | Instruction::BuildTuple(_) => (vec![], hold()),
        Instruction::BuildMap(pairs) => match u16::try_from(2 * pairs) {
            Ok(count) if count > 0 => (pay(Meter::Keys, Some(count)), hold()),
            Ok(_) | Err(_) => (vec![], hold()),
        },
        Instruction::SetAttr(_) => (pay(Meter::Store, Some(2)), vec![]),
        Instruction::PerformTest(name, count, _) => match *name {
            "defined" | "undefined" | "none" | "string" | "mapping" | "number" | "boolean" | "sequence"
            | "iterable" | "integer" | "float" | "true" | "false" | "odd" | "even" => (vec![], vec![]),
            _ => (pay(Meter::Deep, *count), vec![]),
        },
        Instruction::ApplyFilter(name, count, _) => match *name {
            // These look at no more than they are charged for.
            "length" | "count" | "first" | "last" | "default" | "d" | "safe" | "int" | "float" | "abs"
            | "round" => (vec![], hold()),
            // Measured when it is called.
            "tojson" => (vec![], vec![]),
            _ => (pay(Meter::Deep, *count), hold()),
        },
        Instruction::CallMethod(_, count) => (pay(Meter::Method, *count), hold()),
        Instruction::CallFunction(..) | Instruction::CallObject(_) => (vec![], hold()),
        _ => (vec![], vec![]),
    }
}

impl Object for Meter {
    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        let mut purse = Purse::new(state);
        match **self {
            Meter::Deep => args.iter().try_for_each(|value| purse.deep(value, 0))?,
            Meter::Print => {
                let mut containers = args.iter().filter(|value| value.as_object().is_some());
                containers.try_for_each(|value| purse.deep(value, 0))?;
            }
            Meter::Compare => {
                if let [left, right] = args {
                    purse.common(left, right)?;
                }
            }
            Meter::Lookup => {
                args.first().map_or(Ok(()), |value| purse.text(value))?;
                args.iter().skip(1).try_for_each(|value| purse.deep(value, 0))?;
            }
            Meter::Keys => args
                .iter()
                .step_by(2)
                .try_for_each(|value| purse.deep(value, 0))?,
            Meter::Method => {
                let receiver_is_list = args.first().is_some_and(|value| value.kind() == ValueKind::Seq);
                let from = usize::from(!receiver_is_list);
                args.iter()
                    .skip(from)
                    .try_for_each(|value| purse.deep(value, 0))?;
            }
            Meter::Store => {
                if let Some(value) = args.first() {
                    purse.store(value, 0)?;
                }
            }
            Meter::Plain | Meter::Hold => {
                let value = args.first().cloned().unwrap_or_default();
                let value = purse.plain(value)?;
                if **self == Meter::Hold {
                    purse.depth(&value, 0)?;
                }
                purse.pay(state)?;
                return Ok(value);
            }
            Meter::Remainder => return remainder(state, args),
        }
        purse.pay(state)?;
        Ok(Value::from(args.to_vec()))
    }
}

/// `%`: Python's formatting where the left side is text, else the engine's remainder.
fn remainder(state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [left, right] = args else {
        return Err(Error::from(ErrorKind::MissingArgument));
    };
    if left.as_str().is_none() {
        return state
            .env()
            .compile_expression("a % b")?
            .eval(context! { a => left, b => right });
    }
    let mut purse = Purse::new(state);
    purse.deep(left, 0)?;
    purse.deep(right, 0)?;
    purse.pay(state)?;
    let mut all = vec![left.clone()];
    if right.is_tuple() {
        all.extend(right.try_iter()?);
    } else {
        all.push(right.clone());
    }
    spell(&mut all);
    state.apply_filter("format", &all)
}

/// `%r`, which the filter does not have, as `%s` of the value as Python spells it. Only where each argument has one place.
fn spell(all: &mut [Value]) {
    let Some(format) = all.first().and_then(Value::as_str) else {
        return;
    };
    let mut bytes = format.as_bytes().to_vec();
    let (mut at, mut argument, mut spelled) = (0, 0, Vec::new());
    while at < bytes.len() {
        if bytes[at] != b'%' {
            at += 1;
            continue;
        }
        at += 1;
        while bytes.get(at).is_some_and(|b| b"0123456789.-+ #".contains(b)) {
            at += 1;
        }
        match bytes.get(at) {
            Some(b'%') => {}
            Some(b'*' | b'(') | None => return,
            Some(b'r') => {
                argument += 1;
                bytes[at] = b's';
                spelled.push(argument);
            }
            Some(_) => argument += 1,
        }
        at += 1;
    }
    if spelled.is_empty() {
        return;
    }
    // Only ASCII letters were replaced.
    all[0] = Value::from(String::from_utf8_lossy(&bytes).into_owned());
    for at in spelled {
        if let Some(value) = all.get_mut(at) {
            // A list prints its items as Python spells them.
            let list = Value::from(vec![value.clone()]).to_string();
            let item = list.strip_prefix('[').and_then(|list| list.strip_suffix(']'));
            *value = Value::from(item.unwrap_or(&list));
        }
    }
}

/// Units that were spent of those that are left.
struct Purse {
    spent: u64,
    left: u64,
}

impl Purse {
    fn new(state: &State<'_, '_>) -> Self {
        let left = state
            .fuel_levels()
            .map_or(u64::MAX, |(_, steps)| steps.saturating_mul(STEP));
        Self { spent: 0, left }
    }

    fn spend(&mut self, units: u64) -> Result<(), Error> {
        self.spent = self.spent.saturating_add(units);
        if self.spent > self.left {
            return Err(Error::from(ErrorKind::OutOfFuel));
        }
        Ok(())
    }

    fn pay(&self, state: &State<'_, '_>) -> Result<(), Error> {
        match self.spent / STEP {
            0 => Ok(()),
            steps => state.consume_fuel(steps),
        }
    }

    fn text(&mut self, value: &Value) -> Result<(), Error> {
        self.spend(value.as_str().map_or(0, str::len) as u64)
    }

    /// Visits a container's items, or a map's keys and values, each for [`ITEM`].
    fn items(
        &mut self,
        value: &Value,
        depth: usize,
        visit: &mut dyn FnMut(&mut Self, &Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if depth >= DEPTH_MAX {
            return Err(Error::new(ErrorKind::InvalidOperation, TooDeep.to_string()).with_source(TooDeep));
        }
        let is_map = match value.kind() {
            ValueKind::Map => true,
            ValueKind::Seq | ValueKind::Iterable => false,
            _ => return Ok(()),
        };
        for item in value.try_iter()? {
            self.spend(ITEM)?;
            visit(self, &item)?;
            if is_map {
                visit(self, &value.get_item(&item)?)?;
            }
        }
        Ok(())
    }

    /// All that a value holds.
    fn deep(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.text(value)?;
        match value.as_object() {
            Some(_) => self.items(value, depth, &mut |purse, item| purse.deep(item, depth + 1)),
            None => Ok(()),
        }
    }

    /// What the smaller of two values holds; nothing where they cannot be alike.
    fn common(&mut self, left: &Value, right: &Value) -> Result<(), Error> {
        if let (Some(left), Some(right)) = (left.as_str(), right.as_str()) {
            return self.spend(left.len().min(right.len()) as u64);
        }
        if left.as_object().is_none() || right.as_object().is_none() {
            return Ok(());
        }
        let (start, left_max) = (self.spent, self.left);
        let first = self.deep(left, 0);
        let first_cost = self.spent - start;
        // The second is measured no further than the first costs.
        self.spent = start;
        self.left = left_max.min(start + first_cost);
        let second = self.deep(right, 0);
        self.left = left_max;
        match (first, second) {
            (Ok(()), _) => {
                self.spent = self.spent.min(start + first_cost);
                Ok(())
            }
            (Err(_), Ok(())) => Ok(()),
            (Err(error), Err(_)) => Err(error),
        }
    }

    /// Looks for a namespace inside a value.
    fn store(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let Some(object) = value.as_object() else {
            return Ok(());
        };
        if object.type_name().ends_with("::Namespace") {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                "a namespace cannot hold a namespace",
            ));
        }
        self.items(value, depth, &mut |purse, item| purse.store(item, depth + 1))
    }

    /// Refuses what is nested too deeply.
    fn depth(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        match value.as_object() {
            Some(_) => self.items(value, depth, &mut |purse, item| purse.depth(item, depth + 1)),
            None => Ok(()),
        }
    }

    /// A list in the place of what only promises one.
    fn plain(&mut self, value: Value) -> Result<Value, Error> {
        let is_list = matches!(value.kind(), ValueKind::Iterable | ValueKind::Seq);
        if !is_list || value.is_tuple() || value.downcast_object_ref::<Vec<Value>>().is_some() {
            return Ok(value);
        }
        let mut list = Vec::new();
        if let Some(len) = value.len() {
            // Before anything is reserved for it.
            self.spend((len as u64).saturating_mul(SLOT))?;
            list.reserve_exact(len);
        }
        for item in value.try_iter()? {
            if list.len() == list.capacity() {
                self.spend(SLOT)?;
            }
            list.push(item);
        }
        Ok(Value::from(list))
    }
}
