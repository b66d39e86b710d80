//! A `galvani serve` of our own, on a free port, ended when it is dropped.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running server.
pub struct Served {
    child: Child,
    /// `127.0.0.1:12345`
    pub address: String,
}

impl Served {
    /// Starts the binary and waits until the model is ready.
    pub fn start(binary: &Path, arguments: &[&str], patience: Duration) -> Result<Self, String> {
        let shown = format!("{} serve {}", binary.display(), arguments.join(" "));
        eprintln!("+ {shown}");
        let mut child = Command::new(binary)
            .args(["serve", "--port", "0"])
            .args(arguments)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{shown}: {error}"))?;
        let stderr = child.stderr.take().expect("standard error is piped");
        let (send, receive) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                eprintln!("  | {line}");
                if let Some(rest) = line.split("listening on http://").nth(1) {
                    let address: String = rest.chars().take_while(|c| !c.is_whitespace()).collect();
                    // Nobody waits any more once the address is known.
                    let _ = send.send(address);
                }
            }
        });
        let address = receive.recv_timeout(patience);
        let mut served = Self {
            child,
            address: String::new(),
        };
        served.address = address.map_err(|_| format!("{shown}: it did not say where it listens"))?;
        served.wait_ready(patience)?;
        Ok(served)
    }

    fn wait_ready(&mut self, patience: Duration) -> Result<(), String> {
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("the server ended: {status}"));
            }
            if get(&self.address, "/health").is_ok_and(|(status, _)| status == 200) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Err(format!("the server was not ready after {} s", patience.as_secs()))
    }

    /// Resident bytes of the server.
    pub fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
            .unwrap_or(0)
            * 1024
    }

    /// Asks it to end and waits; the exit must be clean.
    pub fn stop(mut self, patience: Duration) -> Result<(), String> {
        let id = self.child.id().to_string();
        let status = Command::new("kill").args(["-TERM", &id]).status();
        status.map_err(|error| format!("kill: {error}"))?;
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(format!("the server ended badly: {status}")),
                Ok(None) => std::thread::sleep(Duration::from_millis(50)),
                Err(error) => return Err(error.to_string()),
            }
        }
        Err("the server did not end after SIGTERM".to_owned())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// GET over a connection of its own: status and body.
pub fn get(address: &str, path: &str) -> Result<(u16, String), String> {
    let head = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    let mut stream = TcpStream::connect(address).map_err(|error| error.to_string())?;
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .map_err(|error| error.to_string())?;
    stream
        .write_all(head.as_bytes())
        .map_err(|error| error.to_string())?;
    let mut text = String::new();
    stream
        .read_to_string(&mut text)
        .map_err(|error| error.to_string())?;
    let status = text
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .ok_or("no status line")?;
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok((status, body.to_owned()))
}
