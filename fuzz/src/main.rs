//! Mutation fuzzing of everything that reads what strangers wrote. See `README.md`.

#[path = "../../crates/weights/tests/support/counting.rs"]
mod counting;
mod driver;
mod mutate;
mod options;
mod targets;

use std::process::ExitCode;

fn main() -> ExitCode {
    match options::parse(std::env::args().skip(1)) {
        Ok(options::Command::List) => {
            for target in targets::TARGETS {
                println!("{:12} {}", target.name, target.about);
            }
            ExitCode::SUCCESS
        }
        Ok(options::Command::Run(options)) => driver::run(&options),
        Ok(options::Command::File(target, path)) => driver::run_file(target, &path),
        Err(message) => {
            eprintln!("{message}\n{}", options::USAGE);
            ExitCode::from(2)
        }
    }
}
