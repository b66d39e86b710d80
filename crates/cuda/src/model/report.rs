//! `galvani-cuda model`: the errors of the model, one by one, then what it predicts for a V100.

use std::path::Path;

use super::{FIT, H200, V100, experts, loops, predict, published, samples, token};
use crate::arch::Arch;
use crate::ops::linear::divide::Device;
use crate::ops::linear::{Linear, LinearFormat, formats, rows};
use crate::pack::file::{self, Pack};

const SHAPES: [(u32, u32); 4] = [(17408, 5120), (5120, 17408), (14336, 4096), (2048, 5120)];
const TOKENS: [u32; 6] = [1, 2, 4, 8, 16, 32];

/// `model [--errors | --loops | --check] [PACK]`: with `--errors` every sample of the calibration; `--loops` writes the table that plans
/// use to standard output, `--check` only compares it.
///
/// # Errors
/// No pack, one without machine code for sm_70, an unknown flag, a table that is not the pack's.
pub fn command(arguments: &[String]) -> Result<(), String> {
    let (flags, named): (Vec<&String>, Vec<&String>) =
        arguments.iter().partition(|argument| argument.starts_with("--"));
    let flags: Vec<&str> = flags.iter().map(|flag| flag.as_str()).collect();
    let path = file::locate(named.first().map(Path::new), None).map_err(|error| error.to_string())?;
    let pack = Pack::read(&path).map_err(|error| error.to_string())?;
    match flags[..] {
        ["--loops"] => {
            print!("{}", loops::of_pack(&pack)?);
            return Ok(());
        }
        ["--check"] => {
            loops::check(&pack)?;
            println!("the loops that plans know are those of the pack");
            return Ok(());
        }
        [] => calibration(false),
        ["--errors"] => calibration(true),
        _ => {
            return Err(format!(
                "{}: known are --errors, --loops and --check, one at a time",
                flags.join(" ")
            ));
        }
    }
    println!("\nExperts (NVFP4) on an H200:\n\n{}", experts::calibration());
    println!("{}", published::markdown());
    println!("{}", token::markdown());
    println!("Predicted for a V100 at 1.38 GHz and 850 GB/s (a prediction: no V100 was measured).\n");
    println!(
        "| format | N x K | M | us | GB/s | of 850 | binds | warps | plan |\n|---|---|---|---|---|---|---|---|---|"
    );
    for format in formats() {
        for (n, k) in SHAPES {
            for m in TOKENS {
                line(&pack, format, n, k, m)?;
            }
        }
    }
    Ok(())
}

fn calibration(all: bool) {
    let samples = samples();
    let mut squares = 0.0;
    let mut worst = [(1.0f64, String::new()), (1.0, String::new())];
    for sample in &samples {
        let ratio = predict(&H200, &sample.work, &FIT).us / sample.us;
        squares += ratio.ln().powi(2);
        if ratio < worst[0].0 {
            worst[0] = (ratio, sample.name.clone());
        }
        if ratio > worst[1].0 {
            worst[1] = (ratio, sample.name.clone());
        }
        if all {
            println!(
                "{:30} measured {:7.1} us, model / measured {ratio:.2}",
                sample.name, sample.us
            );
        }
    }
    println!(
        "calibration on an H200: {} launches, root mean square error {:.1} %, worst {:.2} ({}) and {:.2} ({})",
        samples.len(),
        100.0 * (squares / samples.len() as f64).sqrt(),
        worst[0].0,
        worst[0].1,
        worst[1].0,
        worst[1].1
    );
}

fn line(pack: &Pack, format: LinearFormat, n: u32, k: u32, m: u32) -> Result<(), String> {
    let linear = Linear::plain(format, n, k);
    let plan = linear.plan(m, Device::V100).map_err(|error| error.to_string())?;
    let Some(skinny) = plan.skinny() else {
        return Ok(());
    };
    let kernel = loops::read(pack, Arch::Sm70, &rows::skinny(&format, skinny.shape))?;
    let prediction = predict(&V100, &linear.skinny_work_of(m, skinny, true, &kernel), &FIT);
    let bytes = format.weight_bytes(n, k) as f64;
    let gbs = bytes / prediction.us / 1e3;
    println!(
        "| {} | {n} x {k} | {m} | {:.1} | {gbs:.0} | {:.0} % | {:?} | {} | mt{}, {} columns, {} warps, {} parts |",
        format.name,
        prediction.us,
        100.0 * gbs / V100.read_gbs,
        prediction.bound,
        prediction.warps,
        skinny.shape.token_tiles,
        skinny.shape.columns,
        skinny.warps,
        skinny.parts
    );
    Ok(())
}
