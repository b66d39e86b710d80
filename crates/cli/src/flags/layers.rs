//! Where values come from: command line over environment over file over default.
//!
//! The file's values are given to clap as defaults, so that one parser checks every layer, and the origin of each value
//! is clap's own account of it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use clap::builder::BoolishValueParser;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory, FromArgMatches};

use super::{Low, foreign};
use crate::error::CliError;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Typed.
    Flag,
    /// This environment variable.
    Environment(String),
    /// This key of this file.
    File(PathBuf, String),
    /// Built in.
    Default,
    /// Nobody gave one, and there is none built in.
    Unset,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag => write!(f, "command line"),
            Origin::Environment(name) => write!(f, "environment {name}"),
            Origin::File(path, key) => write!(f, "file {}: {key}", path.display()),
            Origin::Default => write!(f, "default"),
            Origin::Unset => write!(f, "unset"),
        }
    }
}

/// One setting as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Long name of the flag, which is the key of the file.
    pub key: String,
    /// Values as text.
    pub values: Vec<String>,
    /// Where from.
    pub origin: Origin,
    /// Whether the value must not be printed.
    pub secret: bool,
}

/// A parsed command line with its account.
#[derive(Debug)]
pub struct Layered {
    /// The flags.
    pub low: Low,
    /// Sentences about flags that were left out.
    pub notes: Vec<String>,
    /// Every setting of the chosen command.
    pub settings: Vec<Setting>,
    /// The configuration file in force.
    pub file: Option<PathBuf>,
}

/// The command with its environment variables, as used for help and completions.
pub fn command() -> Command {
    let mut command = Low::command();
    let names: Vec<String> = command
        .get_subcommands()
        .map(|s| s.get_name().to_owned())
        .collect();
    command = command.mut_args(with_environment);
    for name in names {
        command = command.mut_subcommand(name, |sub| sub.mut_args(with_environment));
    }
    command
}

fn with_environment(arg: Arg) -> Arg {
    let Some(long) = arg.get_long().map(str::to_owned) else {
        return arg;
    };
    if long == "help" || long == "version" {
        return arg;
    }
    let arg = if matches!(arg.get_action(), ArgAction::SetTrue) {
        arg.value_parser(BoolishValueParser::new())
    } else {
        arg
    };
    arg.env(environment_name(&long)).hide_env(true)
}

/// `--some-name` is `GALVANI_SOME_NAME`.
pub fn environment_name(long: &str) -> String {
    format!("GALVANI_{}", long.replace('-', "_").to_ascii_uppercase())
}

/// Parses a command line with all its layers.
///
/// # Errors
/// For a wrong flag, variable or key, naming the layer; help and version come out as [`CliError::Clap`].
pub fn parse(arguments: Vec<OsString>) -> Result<Layered, CliError> {
    let translated = foreign::translate(arguments)?;
    let path = config_path(&translated.arguments)?;
    let file = path.as_deref().map(read_file).transpose()?.unwrap_or_default();
    let mut command = command();
    if let Some(path) = &path {
        command = apply_file(command, path, &file)?;
    }
    let matches = match command.clone().try_get_matches_from(&translated.arguments) {
        Ok(matches) => matches,
        Err(error) => {
            return Err(blame_file(
                error,
                &command,
                &translated.arguments,
                path.as_deref(),
            ));
        }
    };
    let low = Low::from_arg_matches(&matches)?;
    let settings = account(&command, &matches, path.as_deref(), &file);
    Ok(Layered {
        low,
        notes: translated.notes,
        settings,
        file: path,
    })
}

/// A value from the file that clap refuses must be reported as the file's, not as something typed.
fn blame_file(
    error: clap::Error,
    command: &Command,
    arguments: &[OsString],
    path: Option<&Path>,
) -> CliError {
    let Some(path) = path else { return error.into() };
    let plain = self::command().try_get_matches_from(arguments);
    let from_file = plain.is_ok() && command.clone().try_get_matches_from(arguments).is_err();
    if from_file {
        let text = error.to_string();
        let first = text
            .lines()
            .next()
            .unwrap_or_default()
            .trim_start_matches("error: ")
            .to_owned();
        return CliError::Config {
            path: path.to_owned(),
            reason: first,
        };
    }
    error.into()
}

/// The file named by `--config`, by the environment, or in the user's folder.
fn config_path(arguments: &[OsString]) -> Result<Option<PathBuf>, CliError> {
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let text = argument.to_string_lossy();
        if text == "--" {
            break;
        }
        if text == "--config" {
            return Ok(rest.next().map(PathBuf::from));
        }
        if let Some(value) = text.strip_prefix("--config=") {
            return Ok(Some(PathBuf::from(value)));
        }
    }
    if let Some(path) = std::env::var_os("GALVANI_CONFIG").filter(|v| !v.is_empty()) {
        return Ok(Some(PathBuf::from(path)));
    }
    let base = std::env::var_os("XDG_CONFIG_HOME")
        .filter(|v| !v.is_empty())
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".config")));
    Ok(base
        .map(|base| base.join("galvani/galvani.toml"))
        .filter(|path| path.is_file()))
}

/// Values of a file by `(command or "", key)`.
type FileValues = BTreeMap<(String, String), Vec<String>>;

fn read_file(path: &Path) -> Result<FileValues, CliError> {
    let text = std::fs::read_to_string(path).map_err(CliError::io(path))?;
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| CliError::Config {
        path: path.to_owned(),
        reason: error.to_string(),
    })?;
    let mut values = FileValues::new();
    for (key, value) in table {
        match value {
            toml::Value::Table(section) => {
                for (inner, value) in section {
                    let place = format!("{key}.{inner}");
                    values.insert((key.clone(), inner), scalar_list(path, &place, value)?);
                }
            }
            toml::Value::String(_)
            | toml::Value::Integer(_)
            | toml::Value::Float(_)
            | toml::Value::Boolean(_)
            | toml::Value::Datetime(_)
            | toml::Value::Array(_) => {
                let list = scalar_list(path, &key, value)?;
                values.insert((String::new(), key), list);
            }
        }
    }
    Ok(values)
}

fn scalar_list(path: &Path, place: &str, value: toml::Value) -> Result<Vec<String>, CliError> {
    let wrong = |kind: &str| CliError::Config {
        path: path.to_owned(),
        reason: format!("{place}: got a {kind}, allowed: text, number, boolean, or a list of them"),
    };
    match value {
        toml::Value::String(text) => Ok(vec![text]),
        toml::Value::Integer(number) => Ok(vec![number.to_string()]),
        toml::Value::Float(number) => Ok(vec![number.to_string()]),
        toml::Value::Boolean(truth) => Ok(vec![truth.to_string()]),
        toml::Value::Array(items) => {
            let lists: Result<Vec<_>, _> = items
                .into_iter()
                .map(|item| scalar_list(path, place, item))
                .collect();
            Ok(lists?.into_iter().flatten().collect())
        }
        toml::Value::Table(_) => Err(wrong("table")),
        toml::Value::Datetime(_) => Err(wrong("date")),
    }
}

/// Gives the file's values to clap as defaults; a key that no flag has is an error.
fn apply_file(mut command: Command, path: &Path, values: &FileValues) -> Result<Command, CliError> {
    let subs: Vec<String> = command
        .get_subcommands()
        .map(|s| s.get_name().to_owned())
        .collect();
    for (section, key) in values.keys() {
        let known = if section.is_empty() {
            command.get_subcommands().any(|sub| find_long(sub, key).is_some())
        } else {
            command
                .find_subcommand(section)
                .is_some_and(|sub| find_long(sub, key).is_some())
        };
        if !known {
            let place = if section.is_empty() {
                key.clone()
            } else {
                format!("{section}.{key}")
            };
            let reason = format!("unknown key `{place}`{}", nearest(&command, &subs, section, key));
            return Err(CliError::Config {
                path: path.to_owned(),
                reason,
            });
        }
    }
    for name in subs {
        command = command.mut_subcommand(&name, |sub| {
            let section = if name == "config" { "serve" } else { name.as_str() };
            sub.mut_args(|arg| with_file_default(arg, section, values))
        });
    }
    Ok(command)
}

fn with_file_default(arg: Arg, section: &str, values: &FileValues) -> Arg {
    let Some(long) = arg.get_long().map(str::to_owned) else {
        return arg;
    };
    match file_entry(values, section, &long) {
        Some((_, list)) => arg.default_values(list.clone()),
        None => arg,
    }
}

/// The section's own value, else the file's top-level one, with its full key.
fn file_entry<'v>(values: &'v FileValues, section: &str, key: &str) -> Option<(String, &'v Vec<String>)> {
    if let Some(list) = values.get(&(section.to_owned(), key.to_owned())) {
        return Some((format!("{section}.{key}"), list));
    }
    values
        .get(&(String::new(), key.to_owned()))
        .map(|list| (key.to_owned(), list))
}

fn find_long<'c>(command: &'c Command, long: &str) -> Option<&'c Arg> {
    command.get_arguments().find(|arg| arg.get_long() == Some(long))
}

fn nearest(command: &Command, subs: &[String], section: &str, key: &str) -> String {
    if !section.is_empty() && !subs.iter().any(|sub| sub == section) {
        return format!("; sections are commands: {}", subs.join(", "));
    }
    let close = command
        .get_subcommands()
        .filter(|sub| section.is_empty() || sub.get_name() == section)
        .flat_map(Command::get_arguments)
        .filter_map(Arg::get_long)
        .min_by_key(|long| (distance(long, key), long.len().abs_diff(key.len())));
    match close {
        Some(close) if distance(close, key) <= 3 => format!("; did you mean `{close}`?"),
        Some(_) | None => "; keys are the long flags of `galvani serve --help`".to_owned(),
    }
}

/// Levenshtein's distance, for "did you mean".
pub(crate) fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

fn account(command: &Command, matches: &ArgMatches, path: Option<&Path>, file: &FileValues) -> Vec<Setting> {
    let Some((name, sub)) = matches.subcommand() else {
        return Vec::new();
    };
    let Some(declared) = command.find_subcommand(name) else {
        return Vec::new();
    };
    let section = if name == "config" { "serve" } else { name };
    let mut settings = Vec::new();
    for arg in declared.get_arguments() {
        let Some(long) = arg
            .get_long()
            .filter(|long| !matches!(*long, "help" | "version" | "origin" | "config"))
        else {
            continue;
        };
        let id = arg.get_id().as_str();
        let values = sub
            .get_raw(id)
            .map(|raw| raw.map(|value| value.to_string_lossy().into_owned()).collect())
            .unwrap_or_default();
        let origin = match sub.value_source(id) {
            Some(ValueSource::CommandLine) => Origin::Flag,
            Some(ValueSource::EnvVariable) => Origin::Environment(environment_name(long)),
            Some(ValueSource::DefaultValue) => match (file_entry(file, section, long), path) {
                (Some((key, _)), Some(path)) => Origin::File(path.to_owned(), key),
                (_, _) => Origin::Default,
            },
            Some(_) | None => Origin::Unset,
        };
        settings.push(Setting {
            key: long.to_owned(),
            values,
            origin,
            secret: long == "api-key",
        });
    }
    settings
}
