//! The tables of this folder: a row a line, fields between tabs, explanations behind `#`.

use std::fmt::Debug;
use std::str::FromStr;

use crate::ops::linear::LinearFormat;
use crate::ops::linear::formats::named;

/// A row. The tables are part of the program: a field that is not what it should be ends it, and the tests read every row.
pub(super) struct Row(Vec<&'static str>);

/// The rows of a table.
pub(super) fn rows(text: &'static str) -> impl Iterator<Item = Row> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| Row(line.split('\t').collect()))
}

impl Row {
    /// A field as it stands.
    pub fn text(&self, index: usize) -> &'static str {
        self.0[index]
    }

    /// A field as a number, or what else is read from text.
    pub fn get<T: FromStr<Err: Debug>>(&self, index: usize) -> T {
        let field = self.0[index];
        field
            .parse()
            .unwrap_or_else(|error| panic!("field {index} of {:?}: {error:?}", self.0))
    }

    /// `N` fields from `first` on.
    pub fn numbers<const N: usize>(&self, first: usize) -> [u32; N] {
        std::array::from_fn(|index| self.get(first + index))
    }

    /// A field that names a format.
    pub fn format(&self, index: usize) -> LinearFormat {
        named(self.0[index]).unwrap_or_else(|| panic!("field {index} of {:?}: no such format", self.0))
    }
}
