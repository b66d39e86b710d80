//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use crate::targets::{TARGETS, Target};

pub const USAGE: &str = "usage: galvani-fuzz list
       galvani-fuzz TARGET [--minutes N | --seconds N] [--seed N]
       galvani-fuzz TARGET --file PATH";

pub enum Command {
    List,
    Run(Options),
    File(&'static Target, PathBuf),
}

pub struct Options {
    pub target: &'static Target,
    pub time: Duration,
    pub seed: u64,
}

pub fn parse(mut args: impl Iterator<Item = String>) -> Result<Command, String> {
    let name = args.next().ok_or("no target named")?;
    if name == "list" {
        return Ok(Command::List);
    }
    let target = TARGETS.iter().find(|target| target.name == name);
    let target = target.ok_or_else(|| {
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        format!("no target `{name}`; there are: {}", names.join(", "))
    })?;
    let mut options = Options {
        target,
        time: Duration::from_secs(60),
        seed: 1,
    };
    while let Some(flag) = args.next() {
        let value = args.next().ok_or_else(|| format!("{flag} needs a value"))?;
        let number = || {
            value
                .parse::<u64>()
                .map_err(|_| format!("{flag} takes a whole number, got `{value}`"))
        };
        match flag.as_str() {
            "--minutes" => options.time = Duration::from_secs(number()?.saturating_mul(60)),
            "--seconds" => options.time = Duration::from_secs(number()?),
            "--seed" => options.seed = number()?,
            "--file" => return Ok(Command::File(target, value.into())),
            _ => return Err(format!("no option `{flag}`")),
        }
    }
    Ok(Command::Run(options))
}
