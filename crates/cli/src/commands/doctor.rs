//! `galvani doctor`: what this machine has, and what stands in the way.

use serde_json::json;

use crate::error::CliError;
use crate::flags::DoctorArgs;
use crate::hub::{Store, fetch};
use crate::machine::Machine;
use crate::progress::bytes;

/// One finding.
struct Finding {
    key: &'static str,
    value: String,
    /// What is wrong and what to do, if something is.
    trouble: Option<String>,
}

/// Prints the findings.
pub fn doctor(arguments: &DoctorArgs) -> Result<(), CliError> {
    let store = Store::new(&arguments.store)?;
    let findings = examine(&store);
    if arguments.json {
        let items: Vec<_> = findings
            .iter()
            .map(|f| json!({"key": f.key, "value": f.value, "trouble": f.trouble}))
            .collect();
        println!("{}", serde_json::Value::Array(items));
    } else {
        for finding in &findings {
            println!("{:14} {}", finding.key, finding.value);
            if let Some(trouble) = &finding.trouble {
                println!("{:14} ! {trouble}", "");
            }
        }
    }
    let troubles = findings.iter().filter(|f| f.trouble.is_some()).count();
    if troubles > 0 {
        return Err(CliError::Failed(format!("{troubles} finding(s) need attention")));
    }
    Ok(())
}

fn examine(store: &Store) -> Vec<Finding> {
    let machine = Machine::read();
    let fine = |key, value| Finding {
        key,
        value,
        trouble: None,
    };
    let mut findings = vec![
        fine("version", env!("CARGO_PKG_VERSION").to_owned()),
        fine(
            "system",
            format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        ),
        fine("processor", machine.processor.clone()),
        fine("cores", machine.cores.to_string()),
        fine("instructions", machine.features.join(" ")),
    ];
    let memory = format!(
        "{} free of {}",
        bytes(machine.memory_free),
        bytes(machine.memory_total)
    );
    let low = machine.memory_free < 512 << 20;
    let trouble = low.then(|| "less than 512 MiB: the default model needs about 300 MiB".to_owned());
    findings.push(Finding {
        key: "memory",
        value: memory,
        trouble,
    });
    let root = store.cache.root();
    let existing = root.ancestors().find(|path| path.is_dir()).unwrap_or(root);
    let disk = fetch::free_bytes(existing);
    let value = disk
        .as_ref()
        .map_or_else(ToString::to_string, |free| format!("{} free", bytes(*free)));
    let short = disk.is_ok_and(|free| free < 256 << 20);
    let trouble = short.then(|| format!("no room for a model in {}; set --cache-dir", existing.display()));
    findings.push(Finding {
        key: "cache disk",
        value,
        trouble,
    });
    findings.push(fine("cache", root.display().to_string()));
    findings.push(fine("cached models", store.cache.entries().len().to_string()));
    let port = std::net::TcpListener::bind(("127.0.0.1", 8080));
    let value = if port.is_ok() {
        "8080 is free"
    } else {
        "8080 is taken: serve with --port"
    };
    findings.push(fine("port", value.to_owned()));
    findings
}
