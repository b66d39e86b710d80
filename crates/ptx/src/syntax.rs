//! Tokens to a flat list of items a function: declarations, scopes, labels, statements. Nothing is looked up here.

use crate::PtxError;
use crate::ast::{Init, Item, Operand, Routine, Statement, Unit, Variable};
use crate::lex::{Kind, Token};
use crate::types::{Space, Ty};

pub(crate) fn parse<'t>(tokens: &[Token<'t>]) -> Result<Unit<'t>, PtxError> {
    let mut parser = Parser { tokens, at: 0 };
    let mut unit = Unit::default();
    let mut versioned = false;
    while let Some(token) = parser.peek() {
        match token.text {
            ".version" | ".target" | ".address_size" => {
                versioned = true;
                parser.directive()?;
            }
            ".file" | ".loc" | ".pragma" => parser.skip_line(),
            ".section" => parser.skip_braces()?,
            ".visible" | ".extern" | ".weak" | ".common" | ".entry" | ".func" | ".const" | ".global"
            | ".shared" => {
                parser.declaration(&mut unit)?;
            }
            _ => return Err(parser.unexpected("a module's directive")),
        }
    }
    if !versioned {
        return Err(PtxError::Syntax {
            line: 1,
            what: "the text has no .version".to_owned(),
        });
    }
    Ok(unit)
}

struct Parser<'a, 't> {
    tokens: &'a [Token<'t>],
    at: usize,
}

impl<'t> Parser<'_, 't> {
    fn peek(&self) -> Option<Token<'t>> {
        self.tokens.get(self.at).copied()
    }

    fn line(&self) -> u32 {
        let last = self.tokens.len().saturating_sub(1);
        self.tokens.get(self.at.min(last)).map_or(1, |token| token.line)
    }

    fn error(&self, what: impl Into<String>) -> PtxError {
        PtxError::Syntax {
            line: self.line(),
            what: what.into(),
        }
    }

    fn unexpected(&self, wanted: &str) -> PtxError {
        match self.peek() {
            Some(token) => self.error(format!("`{}` stands where {wanted} is expected", token.text)),
            None => self.error(format!("the text ends where {wanted} is expected")),
        }
    }

    fn is(&self, punct: u8) -> bool {
        self.peek().is_some_and(|token| token.kind == Kind::Punct(punct))
    }

    fn accept(&mut self, punct: u8) -> bool {
        let found = self.is(punct);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, punct: u8) -> Result<(), PtxError> {
        if self.accept(punct) {
            Ok(())
        } else {
            Err(self.unexpected(&format!("`{}`", char::from(punct))))
        }
    }

    fn word(&mut self, wanted: &str) -> Result<&'t str, PtxError> {
        match self.peek() {
            Some(token) if token.kind == Kind::Word => {
                self.at += 1;
                Ok(token.text)
            }
            _ => Err(self.unexpected(wanted)),
        }
    }

    fn accept_word(&mut self, word: &str) -> bool {
        let found = self.peek().is_some_and(|token| token.text == word);
        self.at += usize::from(found);
        found
    }

    fn skip_line(&mut self) {
        let line = self.line();
        while self.peek().is_some_and(|token| token.line == line) {
            self.at += 1;
        }
    }

    /// `.version 8.8`, `.target sm_70, debug`, `.address_size 64`.
    fn directive(&mut self) -> Result<(), PtxError> {
        let name = self.word("a directive")?;
        let value = self.peek().map_or("", |token| token.text);
        if name == ".address_size" && value != "64" {
            return Err(self.error(format!("address size {value}, allowed: 64")));
        }
        let line = self.tokens[self.at - 1].line;
        while self.peek().is_some_and(|token| token.line == line) {
            self.at += 1;
        }
        Ok(())
    }

    fn skip_braces(&mut self) -> Result<(), PtxError> {
        while !self.is(b'{') {
            if self.peek().is_none() {
                return Err(self.unexpected("`{`"));
            }
            self.at += 1;
        }
        let mut depth = 0_usize;
        while let Some(token) = self.peek() {
            self.at += 1;
            match token.kind {
                Kind::Punct(b'{') => depth += 1,
                Kind::Punct(b'}') => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return Ok(());
            }
        }
        Err(self.unexpected("`}`"))
    }

    fn declaration(&mut self, unit: &mut Unit<'t>) -> Result<(), PtxError> {
        let mut external = false;
        loop {
            match self.peek().map(|token| token.text) {
                Some(".extern") => external = true,
                Some(".visible" | ".weak" | ".common") => {}
                _ => break,
            }
            self.at += 1;
        }
        match self.peek().map(|token| token.text) {
            Some(".entry" | ".func") => {
                let routine = self.routine()?;
                unit.routines.push(routine);
            }
            Some(".const" | ".global" | ".shared") => {
                let mut variable = self.variable()?;
                variable.external = external;
                self.expect(b';')?;
                unit.variables.push(variable);
            }
            _ => return Err(self.unexpected("a function or a variable")),
        }
        Ok(())
    }

    fn routine(&mut self) -> Result<Routine<'t>, PtxError> {
        let line = self.line();
        let entry = self.word("`.entry` or `.func`")? == ".entry";
        let returns = if self.is(b'(') {
            self.formals()?
        } else {
            Vec::new()
        };
        let name = self.word("a function's name")?;
        let params = if self.is(b'(') {
            self.formals()?
        } else {
            Vec::new()
        };
        let mut maxntid = None;
        while let Some(token) = self.peek().filter(|token| token.kind == Kind::Word) {
            self.at += 1;
            match token.text {
                ".maxntid" | ".reqntid" => maxntid = Some(self.triple()?),
                ".minnctapersm" | ".maxnreg" => {
                    self.small("a number")?;
                }
                ".noreturn" => {}
                other => return Err(self.error(format!("unknown performance directive `{other}`"))),
            }
        }
        let body = if self.accept(b';') {
            None
        } else {
            Some(self.body()?)
        };
        Ok(Routine {
            name,
            entry,
            params,
            returns,
            body,
            maxntid,
            line,
        })
    }

    fn triple(&mut self) -> Result<[u32; 3], PtxError> {
        let mut sides = [1; 3];
        for (index, side) in sides.iter_mut().enumerate() {
            if index > 0 && !self.accept(b',') {
                break;
            }
            *side = self.small("a size")? as u32;
        }
        Ok(sides)
    }

    fn formals(&mut self) -> Result<Vec<Variable<'t>>, PtxError> {
        self.expect(b'(')?;
        let mut formals = Vec::new();
        while !self.accept(b')') {
            if !formals.is_empty() {
                self.expect(b',')?;
            }
            formals.push(self.variable()?);
        }
        Ok(formals)
    }

    /// `.space .align 4 .b8 name[16] = {..}`, with no semicolon.
    fn variable(&mut self) -> Result<Variable<'t>, PtxError> {
        let line = self.line();
        let space = self.word("a state space")?;
        let space = match space {
            ".const" => Space::Const,
            ".global" => Space::Global,
            ".shared" => Space::Shared,
            ".local" => Space::Local,
            ".param" => Space::Param,
            other => return Err(self.error(format!("unknown state space `{other}`"))),
        };
        let (mut align, mut element) = (None, None);
        let name = loop {
            let word = self.word("a variable's name")?;
            match word {
                ".align" => align = Some(self.small("an alignment")?),
                ".ptr" => {}
                ".global" | ".shared" | ".const" | ".local" if space == Space::Param => {}
                _ => match word.strip_prefix('.') {
                    Some(name) => {
                        element = Some(
                            Ty::named(name).ok_or_else(|| self.error(format!("unknown type `{word}`")))?,
                        );
                    }
                    None => break word,
                },
            }
        };
        let element = element.ok_or_else(|| self.error(format!("variable {name} has no type")))?;
        let width = u64::from(element.bits() / 8).max(1);
        let mut count = Some(1_u64);
        while self.accept(b'[') {
            if self.accept(b']') {
                count = None;
                continue;
            }
            let side = self.small("an array's size")?;
            count = count.and_then(|count| count.checked_mul(side));
            self.expect(b']')?;
            if count.is_none() {
                return Err(self.error(format!("the size of {name} is past 64 bits")));
            }
        }
        let align = align.unwrap_or(width);
        if !align.is_power_of_two() || align > 4096 {
            return Err(self.error(format!(
                "alignment {align} of {name}, allowed: powers of two to 4096"
            )));
        }
        let bytes = count
            .unwrap_or(0)
            .checked_mul(width)
            .ok_or_else(|| self.error(format!("the size of {name} is past 64 bits")))?;
        let init = if self.accept(b'=') {
            self.initialiser()?
        } else {
            Vec::new()
        };
        if init.len() as u64 > bytes / width {
            return Err(self.error(format!(
                "{name} holds {} values, but {} are given",
                bytes / width,
                init.len()
            )));
        }
        Ok(Variable {
            space,
            name,
            align,
            bytes,
            external: false,
            init,
            element,
            line,
        })
    }

    fn initialiser(&mut self) -> Result<Vec<Init<'t>>, PtxError> {
        let mut values = Vec::new();
        let mut depth = 0_usize;
        loop {
            if self.accept(b'{') {
                depth += 1;
                continue;
            }
            values.push(self.init_value()?);
            while depth > 0 && self.accept(b'}') {
                depth -= 1;
            }
            if depth == 0 {
                return Ok(values);
            }
            self.expect(b',')?;
        }
    }

    fn init_value(&mut self) -> Result<Init<'t>, PtxError> {
        let generic = self.accept_word("generic");
        if generic {
            self.expect(b'(')?;
        }
        if self.peek().is_some_and(|token| token.kind == Kind::Word) {
            let name = self.word("a name")?;
            if generic {
                self.expect(b')')?;
            }
            let offset = self.offset()?;
            return Ok(Init::Address(name, offset));
        }
        match self.number()? {
            Operand::Int(value) => Ok(Init::Bits(value as u64)),
            Operand::F32(bits) => Ok(Init::Bits(u64::from(bits))),
            Operand::F64(bits) => Ok(Init::Bits(bits)),
            _ => Err(self.unexpected("a number")),
        }
    }

    fn body(&mut self) -> Result<Vec<Item<'t>>, PtxError> {
        self.expect(b'{')?;
        let mut items = Vec::new();
        let mut depth = 1_usize;
        while depth > 0 {
            let Some(token) = self.peek() else {
                return Err(self.unexpected("`}`"));
            };
            match (token.kind, token.text) {
                (Kind::Punct(b'{'), _) => {
                    self.at += 1;
                    depth += 1;
                    items.push(Item::Open);
                }
                (Kind::Punct(b'}'), _) => {
                    self.at += 1;
                    depth -= 1;
                    items.push(Item::Close);
                }
                (Kind::Punct(b';'), _) => self.at += 1,
                (_, ".loc" | ".file") => self.skip_line(),
                (_, ".pragma") => {
                    while self.peek().is_some() && !self.accept(b';') {
                        self.at += 1;
                    }
                }
                (_, ".reg") => self.registers(&mut items)?,
                (_, ".param" | ".local" | ".shared" | ".const" | ".global") => {
                    items.push(Item::Variable(self.variable()?));
                    self.expect(b';')?;
                }
                _ => items.push(self.statement()?),
            }
        }
        items.pop();
        Ok(items)
    }

    fn registers(&mut self, items: &mut Vec<Item<'t>>) -> Result<(), PtxError> {
        self.at += 1;
        let line = self.line();
        let ty = self.word("a register's type")?;
        let ty = ty
            .strip_prefix('.')
            .and_then(Ty::named)
            .ok_or_else(|| self.error(format!("unknown register type `{ty}`")))?;
        loop {
            let name = self.word("a register's name")?;
            let count = if self.accept(b'<') {
                let count = self.small("a count")?;
                self.expect(b'>')?;
                Some(count)
            } else {
                None
            };
            items.push(Item::Registers {
                ty,
                name,
                count,
                line,
            });
            if !self.accept(b',') {
                break;
            }
        }
        self.expect(b';')
    }

    fn statement(&mut self) -> Result<Item<'t>, PtxError> {
        let guard = if self.accept(b'@') {
            let negated = self.accept(b'!');
            Some((self.word("a predicate")?, negated))
        } else {
            None
        };
        let line = self.line();
        let word = self.word("an instruction")?;
        if guard.is_none() && self.accept(b':') {
            if self.accept_word(".branchtargets") {
                let mut targets = vec![self.word("a label")?];
                while self.accept(b',') {
                    targets.push(self.word("a label")?);
                }
                self.expect(b';')?;
                return Ok(Item::Targets { label: word, targets });
            }
            return Ok(Item::Label(word, line));
        }
        let mut operands = Vec::new();
        while !self.accept(b';') {
            if !operands.is_empty() {
                self.expect(b',')?;
            }
            operands.push(self.operand()?);
        }
        Ok(Item::Statement(Statement {
            guard,
            opcode: word,
            operands,
            line,
        }))
    }

    fn operand(&mut self) -> Result<Operand<'t>, PtxError> {
        if self.accept(b'{') {
            return Ok(Operand::Vector(self.list(b'}')?));
        }
        if self.accept(b'(') {
            return Ok(Operand::Group(self.list(b')')?));
        }
        if self.accept(b'[') {
            let base = match self.peek() {
                Some(token) if token.kind == Kind::Word => Some(self.word("a base")?),
                _ => None,
            };
            let offset = if base.is_some() {
                self.offset()?
            } else {
                self.integer()?
            };
            self.expect(b']')?;
            return Ok(Operand::Address(base, offset));
        }
        self.simple()
    }

    fn list(&mut self, end: u8) -> Result<Vec<Operand<'t>>, PtxError> {
        let mut items = Vec::new();
        while !self.accept(end) {
            if !items.is_empty() {
                self.expect(b',')?;
            }
            items.push(self.simple()?);
        }
        Ok(items)
    }

    fn simple(&mut self) -> Result<Operand<'t>, PtxError> {
        if self.accept(b'!') {
            return Ok(Operand::Not(self.word("a predicate")?));
        }
        if self.peek().is_some_and(|token| token.kind == Kind::Word) {
            let name = self.word("an operand")?;
            if self.accept(b'|') {
                return Ok(Operand::Pair(name, self.word("a predicate")?));
            }
            return Ok(match self.offset()? {
                0 => Operand::Word(name),
                offset => Operand::Offset(name, offset),
            });
        }
        self.number()
    }

    /// `+ 16`, `+-16`, `- 16` or nothing.
    fn offset(&mut self) -> Result<i64, PtxError> {
        if self.accept(b'+') || self.is(b'-') {
            self.integer()
        } else {
            Ok(0)
        }
    }

    fn integer(&mut self) -> Result<i64, PtxError> {
        match self.number()? {
            Operand::Int(value) => i64::try_from(value)
                .map_err(|_| self.error(format!("{value} does not fit 64 bits with a sign"))),
            _ => Err(self.error("an integer is expected")),
        }
    }

    fn small(&mut self, wanted: &str) -> Result<u64, PtxError> {
        match self.number()? {
            Operand::Int(value) if (0..1 << 48).contains(&value) => Ok(value as u64),
            _ => Err(self.error(format!("{wanted} is expected: an integer from 0 below 2^48"))),
        }
    }

    fn number(&mut self) -> Result<Operand<'t>, PtxError> {
        let negative = self.accept(b'-');
        let token = match self.peek() {
            Some(token) if token.kind == Kind::Number => token,
            _ => return Err(self.unexpected("an operand")),
        };
        self.at += 1;
        let value =
            number(token.text).ok_or_else(|| self.error(format!("`{}` is not a number", token.text)))?;
        Ok(match value {
            Operand::Int(value) if negative => Operand::Int(-value),
            Operand::F32(bits) if negative => Operand::F32(bits ^ 1 << 31),
            Operand::F64(bits) if negative => Operand::F64(bits ^ 1 << 63),
            other => other,
        })
    }
}

fn number<'t>(text: &str) -> Option<Operand<'t>> {
    let exact =
        |digits: &str, count: usize| (digits.len() == count).then(|| u64::from_str_radix(digits, 16).ok())?;
    if let Some(digits) = text.strip_prefix("0f").or_else(|| text.strip_prefix("0F")) {
        return Some(Operand::F32(exact(digits, 8)? as u32));
    }
    if let Some(digits) = text.strip_prefix("0d").or_else(|| text.strip_prefix("0D")) {
        return Some(Operand::F64(exact(digits, 16)?));
    }
    if text.contains('.') {
        return text
            .parse::<f64>()
            .ok()
            .map(|value| Operand::F64(value.to_bits()));
    }
    let digits = text.trim_end_matches(['U', 'u']);
    let lower = digits.to_ascii_lowercase();
    let (digits, radix) = match (lower.strip_prefix("0x"), lower.strip_prefix("0b")) {
        (Some(digits), _) => (digits, 16),
        (_, Some(digits)) => (digits, 2),
        _ if lower.len() > 1 && lower.starts_with('0') => (&lower[1..], 8),
        _ => (lower.as_str(), 10),
    };
    u64::from_str_radix(digits, radix)
        .ok()
        .map(|value| Operand::Int(i128::from(value)))
}
