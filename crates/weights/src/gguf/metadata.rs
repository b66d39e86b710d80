//! Typed metadata.

use std::fmt;

use crate::LoadError;
use crate::error::shown;

/// One value. Integers keep the width that the file gave them; the getters of [`Metadata`] take any width that fits,
/// since writers differ.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum MetaValue {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    String(String),
    Array(MetaArray),
}

/// An array, its elements stored densely.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum MetaArray {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bool(Vec<bool>),
    String(StringArray),
}

/// Many strings in one buffer: a vocabulary has 10^5 of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StringArray {
    text: String,
    /// End of each string in `text`.
    ends: Vec<u32>,
}

impl StringArray {
    /// `text` cut at `ends`, which ascend and are character boundaries.
    pub(super) fn new(text: String, ends: Vec<u32>) -> Self {
        Self { text, ends }
    }

    /// Number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The string at `index`.
    pub fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)? as usize;
        let start = match index {
            0 => 0,
            _ => self.ends[index - 1] as usize,
        };
        self.text.get(start..end)
    }

    /// All strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.len()).map(|index| self.get(index).expect("index is below the length"))
    }
}

impl MetaArray {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            MetaArray::U8(v) => v.len(),
            MetaArray::I8(v) => v.len(),
            MetaArray::U16(v) => v.len(),
            MetaArray::I16(v) => v.len(),
            MetaArray::U32(v) => v.len(),
            MetaArray::I32(v) => v.len(),
            MetaArray::U64(v) => v.len(),
            MetaArray::I64(v) => v.len(),
            MetaArray::F32(v) => v.len(),
            MetaArray::F64(v) => v.len(),
            MetaArray::Bool(v) => v.len(),
            MetaArray::String(v) => v.len(),
        }
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements as integers, or `None` for an array of something else. Values above `i64::MAX` are `None` too.
    pub fn integers(&self) -> Option<Vec<i64>> {
        match self {
            MetaArray::U8(v) => Some(v.iter().map(|&x| x.into()).collect()),
            MetaArray::I8(v) => Some(v.iter().map(|&x| x.into()).collect()),
            MetaArray::U16(v) => Some(v.iter().map(|&x| x.into()).collect()),
            MetaArray::I16(v) => Some(v.iter().map(|&x| x.into()).collect()),
            MetaArray::U32(v) => Some(v.iter().map(|&x| x.into()).collect()),
            MetaArray::I32(v) => Some(v.iter().map(|&x| x.into()).collect()),
            MetaArray::U64(v) => v.iter().map(|&x| i64::try_from(x).ok()).collect(),
            MetaArray::I64(v) => Some(v.clone()),
            MetaArray::F32(_) | MetaArray::F64(_) | MetaArray::Bool(_) | MetaArray::String(_) => None,
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            MetaArray::U8(_) => "u8",
            MetaArray::I8(_) => "i8",
            MetaArray::U16(_) => "u16",
            MetaArray::I16(_) => "i16",
            MetaArray::U32(_) => "u32",
            MetaArray::I32(_) => "i32",
            MetaArray::U64(_) => "u64",
            MetaArray::I64(_) => "i64",
            MetaArray::F32(_) => "f32",
            MetaArray::F64(_) => "f64",
            MetaArray::Bool(_) => "bool",
            MetaArray::String(_) => "string",
        }
    }
}

impl MetaValue {
    /// The value as an integer, whatever its width.
    pub fn integer(&self) -> Option<i128> {
        match *self {
            MetaValue::U8(v) => Some(v.into()),
            MetaValue::I8(v) => Some(v.into()),
            MetaValue::U16(v) => Some(v.into()),
            MetaValue::I16(v) => Some(v.into()),
            MetaValue::U32(v) => Some(v.into()),
            MetaValue::I32(v) => Some(v.into()),
            MetaValue::U64(v) => Some(v.into()),
            MetaValue::I64(v) => Some(v.into()),
            MetaValue::F32(_) | MetaValue::F64(_) | MetaValue::Bool(_) => None,
            MetaValue::String(_) | MetaValue::Array(_) => None,
        }
    }
}

impl fmt::Display for MetaValue {
    /// For messages and listings: one line, strings and arrays cut short.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MetaValue::F32(v) => write!(f, "{v} (f32)"),
            MetaValue::F64(v) => write!(f, "{v} (f64)"),
            MetaValue::Bool(v) => write!(f, "{v}"),
            MetaValue::String(v) => write!(f, "\"{}\"", shown(v)),
            MetaValue::Array(v) => write!(f, "an array of {} {}", v.len(), v.kind()),
            _ => write!(f, "{}", self.integer().expect("all other kinds are integers")),
        }
    }
}

/// The keys of a file, in its order.
#[derive(Debug, Clone)]
pub struct Metadata {
    origin: String,
    entries: Vec<(String, MetaValue)>,
}

impl Metadata {
    /// Keys must be unique; the parser has checked it.
    pub(super) fn new(origin: String, entries: Vec<(String, MetaValue)>) -> Self {
        Self { origin, entries }
    }

    /// The file, for messages.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// All keys and values, in the file's order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &MetaValue)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&MetaValue> {
        self.entries
            .iter()
            .find(|entry| entry.0 == key)
            .map(|entry| &entry.1)
    }

    fn wrong(&self, key: &str, value: &MetaValue, wanted: &str) -> LoadError {
        LoadError::key(&self.origin, key, format!("is {value}, expected {wanted}"))
    }

    fn integer<T: TryFrom<i128>>(&self, key: &str, wanted: &str) -> Result<Option<T>, LoadError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let number = value.integer().and_then(|number| T::try_from(number).ok());
        number.map(Some).ok_or_else(|| self.wrong(key, value, wanted))
    }

    /// An integer of any width that fits 32 bits, or `None` when the key is absent.
    ///
    /// # Errors
    /// When the key holds something else.
    pub fn get_u32(&self, key: &str) -> Result<Option<u32>, LoadError> {
        self.integer(key, "an integer of 0 to 2^32-1")
    }

    /// A size or count.
    ///
    /// # Errors
    /// When the key holds something else.
    pub fn get_usize(&self, key: &str) -> Result<Option<usize>, LoadError> {
        self.integer(key, "an integer that is not negative")
    }

    /// A signed integer.
    ///
    /// # Errors
    /// When the key holds something else.
    pub fn get_i64(&self, key: &str) -> Result<Option<i64>, LoadError> {
        self.integer(key, "an integer")
    }

    /// A float; integers are taken too where they are exact.
    ///
    /// # Errors
    /// When the key holds something else or not a finite number.
    pub fn get_f32(&self, key: &str) -> Result<Option<f32>, LoadError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let number = match *value {
            MetaValue::F32(v) => Some(v),
            MetaValue::F64(v) => Some(v as f32),
            _ => value
                .integer()
                .map(|v| v as f32)
                .filter(|v| v.abs() <= 16_777_216.0),
        };
        let finite = number.filter(|v| v.is_finite());
        finite
            .map(Some)
            .ok_or_else(|| self.wrong(key, value, "a finite number"))
    }

    /// A truth value.
    ///
    /// # Errors
    /// When the key holds something else.
    pub fn get_bool(&self, key: &str) -> Result<Option<bool>, LoadError> {
        match self.get(key) {
            None => Ok(None),
            Some(MetaValue::Bool(v)) => Ok(Some(*v)),
            Some(value) => Err(self.wrong(key, value, "true or false")),
        }
    }

    /// A string.
    ///
    /// # Errors
    /// When the key holds something else.
    pub fn get_str(&self, key: &str) -> Result<Option<&str>, LoadError> {
        match self.get(key) {
            None => Ok(None),
            Some(MetaValue::String(v)) => Ok(Some(v)),
            Some(value) => Err(self.wrong(key, value, "a string")),
        }
    }

    /// An array of any kind.
    ///
    /// # Errors
    /// When the key holds something else.
    pub fn get_array(&self, key: &str) -> Result<Option<&MetaArray>, LoadError> {
        match self.get(key) {
            None => Ok(None),
            Some(MetaValue::Array(v)) => Ok(Some(v)),
            Some(value) => Err(self.wrong(key, value, "an array")),
        }
    }

    /// An array of strings.
    ///
    /// # Errors
    /// When the key holds something else.
    pub fn get_strings(&self, key: &str) -> Result<Option<&StringArray>, LoadError> {
        match self.get(key) {
            None => Ok(None),
            Some(MetaValue::Array(MetaArray::String(v))) => Ok(Some(v)),
            Some(value) => Err(self.wrong(key, value, "an array of strings")),
        }
    }

    /// An array of f32 (such as token scores).
    ///
    /// # Errors
    /// When the key holds something else.
    pub fn get_f32s(&self, key: &str) -> Result<Option<&[f32]>, LoadError> {
        match self.get(key) {
            None => Ok(None),
            Some(MetaValue::Array(MetaArray::F32(v))) => Ok(Some(v)),
            Some(value) => Err(self.wrong(key, value, "an array of f32")),
        }
    }

    /// An array of integers of any width that fit 32 bits (such as token types).
    ///
    /// # Errors
    /// When the key holds something else.
    pub fn get_i32s(&self, key: &str) -> Result<Option<Vec<i32>>, LoadError> {
        self.narrow(key, "an array of 32-bit integers")
    }

    /// An array of sizes or counts, one a layer for instance.
    ///
    /// # Errors
    /// When the key holds something else.
    pub fn get_usizes(&self, key: &str) -> Result<Option<Vec<usize>>, LoadError> {
        self.narrow(key, "an array of integers that are not negative")
    }

    /// An array of truth values; integers 0 and 1 are taken too.
    ///
    /// # Errors
    /// When the key holds something else.
    pub fn get_bools(&self, key: &str) -> Result<Option<Vec<bool>>, LoadError> {
        if let Some(MetaValue::Array(MetaArray::Bool(v))) = self.get(key) {
            return Ok(Some(v.clone()));
        }
        let numbers: Option<Vec<u8>> = self.narrow(key, "an array of truth values")?;
        match numbers {
            Some(v) if v.iter().any(|&x| x > 1) => Err(LoadError::key(
                &self.origin,
                key,
                "has an element other than 0 and 1",
            )),
            v => Ok(v.map(|v| v.iter().map(|&x| x == 1).collect())),
        }
    }

    fn narrow<T: TryFrom<i64>>(&self, key: &str, wanted: &str) -> Result<Option<Vec<T>>, LoadError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let MetaValue::Array(array) = value else {
            return Err(self.wrong(key, value, wanted));
        };
        let numbers = array.integers().ok_or_else(|| self.wrong(key, value, wanted))?;
        let narrowed: Option<Vec<T>> = numbers.iter().map(|&x| T::try_from(x).ok()).collect();
        narrowed.map(Some).ok_or_else(|| {
            LoadError::key(
                &self.origin,
                key,
                format!("has an element out of range; expected {wanted}"),
            )
        })
    }

    /// The value that a getter found, where the key must be there: `metadata.need(key, metadata.get_u32(key)?)`.
    ///
    /// # Errors
    /// When it is `None`.
    pub fn need<T>(&self, key: &str, value: Option<T>) -> Result<T, LoadError> {
        value.ok_or_else(|| LoadError::key(&self.origin, key, "is missing"))
    }
}
