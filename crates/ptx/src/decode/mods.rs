//! An opcode's modifiers, taken one by one; what nobody takes is an error.

use crate::PtxError;
use crate::rounding::Round;
use crate::types::Ty;

pub(crate) struct Mods<'t> {
    opcode: &'t str,
    rest: Vec<&'t str>,
    line: u32,
}

impl<'t> Mods<'t> {
    pub(crate) fn new(opcode: &'t str, line: u32) -> Self {
        Self {
            opcode,
            rest: opcode.split('.').skip(1).collect(),
            line,
        }
    }

    pub(crate) fn opcode(&self) -> &'t str {
        self.opcode
    }

    /// The part before the first dot.
    pub(crate) fn name(&self) -> &'t str {
        self.opcode.split('.').next().unwrap_or_default()
    }

    pub(crate) fn unknown(&self) -> PtxError {
        PtxError::UnknownOpcode {
            line: self.line,
            opcode: self.opcode.to_owned(),
        }
    }

    pub(crate) fn take(&mut self, name: &str) -> bool {
        let at = self.rest.iter().position(|modifier| *modifier == name);
        if let Some(at) = at {
            self.rest.remove(at);
        }
        at.is_some()
    }

    /// Removes all of these, in any number.
    pub(crate) fn ignore(&mut self, names: &[&str]) {
        self.rest.retain(|modifier| !names.contains(modifier));
    }

    /// The first modifier that the table knows.
    pub(crate) fn one_of<T: Copy>(&mut self, table: &[(&str, T)]) -> Option<T> {
        for at in 0..self.rest.len() {
            if let Some((_, value)) = table.iter().find(|(name, _)| *name == self.rest[at]) {
                self.rest.remove(at);
                return Some(*value);
            }
        }
        None
    }

    /// The first type among the modifiers.
    pub(crate) fn ty(&mut self) -> Result<Ty, PtxError> {
        let found = self
            .rest
            .iter()
            .enumerate()
            .find_map(|(at, name)| Ty::named(name).map(|ty| (at, ty)));
        let Some((at, ty)) = found else {
            return Err(PtxError::Syntax {
                line: self.line,
                what: format!("`{}` has no type", self.opcode),
            });
        };
        self.rest.remove(at);
        Ok(ty)
    }

    pub(crate) fn round(&mut self) -> Option<Round> {
        self.one_of(&[
            ("rn", Round::Nearest),
            ("rz", Round::Zero),
            ("rm", Round::Down),
            ("rp", Round::Up),
        ])
    }

    pub(crate) fn finish(&self) -> Result<(), PtxError> {
        match self.rest.first() {
            None => Ok(()),
            Some(modifier) => Err(PtxError::UnknownModifier {
                line: self.line,
                opcode: self.opcode.to_owned(),
                modifier: (*modifier).to_owned(),
            }),
        }
    }
}
