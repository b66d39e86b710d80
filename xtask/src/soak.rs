//! Many streams for minutes against one server: random lengths, cancels, disconnects. Afterwards every page of the
//! key/value pool must be free again and the resident size must have stayed where it was.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::program::{Flags, Outcome, cargo, target};
use crate::served::{Served, get};

#[derive(Default)]
struct Counts {
    finished: AtomicU64,
    dropped: AtomicU64,
    busy: AtomicU64,
    events: AtomicU64,
    faults: AtomicU64,
}

/// Runs it.
pub fn soak(arguments: &[String]) -> Outcome {
    let flags = Flags::parse(arguments, &["minutes", "streams", "seed", "model"], &[])?;
    let seconds = flags.number("minutes", 5)? * 60;
    let streams = flags.number("streams", 64)?;
    let seed = flags.number("seed", 1)?;
    cargo(&["build", "--release", "--package", "galvani"])?;
    let binary: PathBuf = target().join("release/galvani");
    let count = streams.to_string();
    let mut options = vec![
        "--sequences",
        &count,
        "--context",
        "1024",
        "--cache-memory",
        "192",
        "--quiet",
    ];
    if let Some(model) = flags.text("model") {
        options.extend(["--model", model]);
    }
    let served = Served::start(&binary, &options, Duration::from_secs(120))?;
    let counts = Counts::default();
    let start = Instant::now();
    let deadline = start + Duration::from_secs(seconds);
    let mut sizes = Vec::new();
    std::thread::scope(|scope| {
        for stream in 0..streams {
            let (address, counts) = (served.address.as_str(), &counts);
            scope.spawn(move || {
                let mut dice = Dice(seed.wrapping_mul(1_000_003).wrapping_add(stream).wrapping_add(1));
                while Instant::now() < deadline {
                    if let Err(fault) = one(address, &mut dice, counts) {
                        counts.faults.fetch_add(1, Ordering::Relaxed);
                        eprintln!("stream {stream}: {fault}");
                    }
                }
            });
        }
        while Instant::now() < deadline {
            std::thread::sleep(
                Duration::from_secs(5).min(deadline.saturating_duration_since(Instant::now())),
            );
            sizes.push((start.elapsed(), served.resident()));
        }
    });
    // The last cancels take one step.
    std::thread::sleep(Duration::from_secs(2));
    let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let used = usage(&served.address)?;
    println!(
        "{} finished, {} cut off by the client, {} answered 429, {} events, {} faults; key/value pool in use: {used}",
        load(&counts.finished),
        load(&counts.dropped),
        load(&counts.busy),
        load(&counts.events),
        load(&counts.faults)
    );
    let growth = growth(&sizes);
    println!("resident: {}", growth.1);
    served.stop(Duration::from_secs(40))?;
    if load(&counts.faults) > 0 || load(&counts.finished) == 0 {
        return Err("streams failed".to_owned());
    }
    if used != 0.0 {
        return Err("pages of the pool are still in use".to_owned());
    }
    if growth.0 > 0.02 {
        return Err("the resident size grew by more than 2 %".to_owned());
    }
    Ok(())
}

/// The pool is small, so that the prefix cache fills it early. Growth from the middle of the run (caches are full by then) to its end.
fn growth(sizes: &[(Duration, u64)]) -> (f64, String) {
    let (Some(last), Some(middle)) = (sizes.last(), sizes.get(sizes.len() / 2)) else {
        return (0.0, "not sampled".to_owned());
    };
    let share = last.1 as f64 / middle.1.max(1) as f64 - 1.0;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let text = format!(
        "{:.1} MiB after {:.0} s, {:.1} MiB after {:.0} s ({:+.2} %)",
        mib(middle.1),
        middle.0.as_secs_f64(),
        mib(last.1),
        last.0.as_secs_f64(),
        share * 100.0
    );
    (share, text)
}

/// The share of pages in use, from /metrics.
fn usage(address: &str) -> Result<f64, String> {
    let (_, body) = get(address, "/metrics")?;
    let names = [
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
        "vllm_kv_cache_usage_perc",
    ];
    let line = body
        .lines()
        .find(|line| names.iter().any(|name| line.starts_with(name)));
    let value = line
        .and_then(|line| line.rsplit(' ').next())
        .and_then(|value| value.parse().ok());
    value.ok_or_else(|| "no gauge of the key/value pool in /metrics".to_owned())
}

/// One request: read to its end, or left in the middle.
fn one(address: &str, dice: &mut Dice, counts: &Counts) -> Result<(), String> {
    let words = 1 + dice.below(200);
    let prompt: Vec<&str> = (0..words)
        .map(|_| ["river", "stone", "light", "seven", "bird"][dice.below(5) as usize])
        .collect();
    let body = json!({
        "model": "any",
        "messages": [{"role": "user", "content": prompt.join(" ")}],
        "max_tokens": 1 + dice.below(64),
        "temperature": 1.0,
        "seed": dice.below(1 << 30),
        "stream": true,
    });
    let leave_after = (dice.below(4) == 0).then(|| dice.below(20));
    let model = model_name(address)?;
    let mut body = body;
    body["model"] = Value::String(model);
    let body = body.to_string();
    let mut stream = TcpStream::connect(address).map_err(|error| format!("connect: {error}"))?;
    stream
        .set_read_timeout(Some(Duration::from_secs(120)))
        .map_err(|error| error.to_string())?;
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream
        .write_all(head.as_bytes())
        .and_then(|()| stream.write_all(body.as_bytes()))
        .map_err(|error| error.to_string())?;
    let mut lines = BufReader::new(stream.try_clone().map_err(|error| error.to_string())?).lines();
    let status = lines.next().and_then(Result::ok).ok_or("no status line")?;
    if status.contains(" 429 ") {
        counts.busy.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(200));
        return Ok(());
    }
    if !status.contains(" 200 ") {
        return Err(status);
    }
    let mut events = 0;
    for line in lines {
        let line = line.map_err(|error| format!("after {events} events: {error}"))?;
        if line.contains("data: [DONE]") {
            counts.finished.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        if line.contains("\"error\"") {
            return Err(line);
        }
        if line.starts_with("data:") {
            events += 1;
            counts.events.fetch_add(1, Ordering::Relaxed);
        }
        if leave_after.is_some_and(|count| events > count) {
            counts.dropped.fetch_add(1, Ordering::Relaxed);
            // Either way of leaving: closing both ends at once, or just letting go.
            if dice.below(2) == 0 {
                let _ = stream.shutdown(Shutdown::Both);
            }
            return Ok(());
        }
    }
    Err(format!(
        "the stream ended after {events} events without its last one"
    ))
}

fn model_name(address: &str) -> Result<String, String> {
    static NAME: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    if let Some(name) = NAME.get() {
        return Ok(name.clone());
    }
    let (_, body) = get(address, "/v1/models")?;
    let value: Value = serde_json::from_str(&body).map_err(|error| format!("/v1/models: {error}"))?;
    let name = value["data"][0]["id"]
        .as_str()
        .ok_or("/v1/models names no model")?
        .to_owned();
    Ok(NAME.get_or_init(|| name).clone())
}

/// Random numbers (xorshift64*; Vigna, 2016), the same for the same seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
    }
}
