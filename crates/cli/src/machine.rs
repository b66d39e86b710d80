//! What this machine has: cores, memory, instructions.

/// Figures of the machine, read once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// Name of the processor, or "unknown".
    pub processor: String,
    /// Cores this process may use.
    pub cores: usize,
    /// Bytes of memory (the container's limit, if lower).
    pub memory_total: u64,
    /// Bytes that could be had now.
    pub memory_free: u64,
    /// Vector instructions found.
    pub features: Vec<&'static str>,
}

impl Machine {
    /// Reads them. What the system does not say is 0 or "unknown".
    pub fn read() -> Self {
        let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let memory = text("/proc/meminfo");
        let field = |name: &str| {
            let line = memory.lines().find(|line| line.starts_with(name));
            let kib: Option<u64> = line
                .and_then(|l| l.split_whitespace().nth(1))
                .and_then(|n| n.parse().ok());
            kib.unwrap_or(0) * 1024
        };
        let limit = text("/sys/fs/cgroup/memory.max")
            .trim()
            .parse::<u64>()
            .unwrap_or(u64::MAX);
        let used = text("/sys/fs/cgroup/memory.current")
            .trim()
            .parse::<u64>()
            .unwrap_or(0);
        let processor = text("/proc/cpuinfo")
            .lines()
            .find_map(|line| {
                line.strip_prefix("model name")?
                    .split_once(':')
                    .map(|(_, name)| name.trim().to_owned())
            })
            .unwrap_or_else(|| "unknown".to_owned());
        Self {
            processor,
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_total: field("MemTotal:").min(limit),
            memory_free: field("MemAvailable:").min(limit.saturating_sub(used)),
            features: features(),
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn features() -> Vec<&'static str> {
    let found = [
        ("avx2", std::arch::is_x86_feature_detected!("avx2")),
        ("fma", std::arch::is_x86_feature_detected!("fma")),
        ("f16c", std::arch::is_x86_feature_detected!("f16c")),
        ("avx512f", std::arch::is_x86_feature_detected!("avx512f")),
        ("avx512bw", std::arch::is_x86_feature_detected!("avx512bw")),
        ("avx512vnni", std::arch::is_x86_feature_detected!("avx512vnni")),
    ];
    found
        .into_iter()
        .filter_map(|(name, there)| there.then_some(name))
        .collect()
}

#[cfg(target_arch = "aarch64")]
fn features() -> Vec<&'static str> {
    let found = [
        ("neon", std::arch::is_aarch64_feature_detected!("neon")),
        ("dotprod", std::arch::is_aarch64_feature_detected!("dotprod")),
        ("i8mm", std::arch::is_aarch64_feature_detected!("i8mm")),
    ];
    found
        .into_iter()
        .filter_map(|(name, there)| there.then_some(name))
        .collect()
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn features() -> Vec<&'static str> {
    Vec::new()
}

/// Highest resident size of this process, bytes; 0 where the system does not say.
pub fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or(0)
        * 1024
}
