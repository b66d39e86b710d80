//! `galvani config`: the settings of `serve` in force, as the file that would give them.

use std::path::Path;

use crate::error::CliError;
use crate::flags::ConfigArgs;
use crate::flags::layers::{Setting, environment_name};

/// Prints every setting, with its origin if asked for.
pub fn config(arguments: &ConfigArgs, settings: &[Setting], file: Option<&Path>) -> Result<(), CliError> {
    match file {
        Some(path) => println!("# file: {}", path.display()),
        None => println!("# file: none"),
    }
    let width = settings
        .iter()
        .map(|s| render(s).chars().count())
        .max()
        .unwrap_or(0)
        .min(48);
    for setting in settings {
        let line = render(setting);
        if arguments.origin {
            let name = environment_name(&setting.key);
            println!("{line:width$}  # {} (--{}, {name})", setting.origin, setting.key);
        } else {
            println!("{line}");
        }
    }
    Ok(())
}

fn render(setting: &Setting) -> String {
    let literal = |text: &String| {
        if setting.secret {
            return "\"***\"".to_owned();
        }
        let plain = text.parse::<i64>().is_ok() || matches!(text.as_str(), "true" | "false");
        if plain {
            text.clone()
        } else {
            toml::Value::String(text.clone()).to_string()
        }
    };
    match setting.values.as_slice() {
        [] => format!("# {} =", setting.key),
        [one] => format!("{} = {}", setting.key, literal(one)),
        many => {
            let items: Vec<String> = many.iter().map(literal).collect();
            format!("{} = [{}]", setting.key, items.join(", "))
        }
    }
}
