//! Where NVRTC and CUDA's headers are.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::CudaError;

/// Names a libnvrtc 12.
pub const LIBRARY_VARIABLE: &str = "GALVANI_NVRTC";
/// Names a folder with `cuda_fp16.h`.
pub const INCLUDE_VARIABLE: &str = "GALVANI_CUDA_INCLUDE";

const LIBRARY: &str = if cfg!(windows) {
    "nvrtc64_120_0.dll"
} else {
    "libnvrtc.so.12"
};
const LIBRARY_FOLDER: &str = if cfg!(windows) {
    "cuda_nvrtc/bin"
} else {
    "cuda_nvrtc/lib"
};

/// What to load, in the order to try: a path, or a name that the system's loader looks up.
///
/// # Errors
/// `GALVANI_NVRTC` names a file that does not exist.
pub fn libraries() -> Result<Vec<PathBuf>, CudaError> {
    if let Some(named) = std::env::var_os(LIBRARY_VARIABLE) {
        let path = PathBuf::from(named);
        return if path.is_file() {
            Ok(vec![path])
        } else {
            let reason = format!("{LIBRARY_VARIABLE}={} is not a file", path.display());
            Err(CudaError::NoCompiler { reason })
        };
    }
    let mut found: Vec<PathBuf> = site_packages()
        .iter()
        .map(|folder| folder.join("nvidia").join(LIBRARY_FOLDER).join(LIBRARY))
        .filter(|path| path.is_file())
        .collect();
    found.push(PathBuf::from(LIBRARY));
    Ok(found)
}

/// The folder with CUDA's headers.
///
/// # Errors
/// No place has `cuda_fp16.h`.
pub fn headers() -> Result<PathBuf, CudaError> {
    let has = |folder: &Path| folder.join("cuda_fp16.h").is_file();
    if let Some(named) = std::env::var_os(INCLUDE_VARIABLE) {
        let folder = PathBuf::from(named);
        return if has(&folder) {
            Ok(folder)
        } else {
            let reason = format!("{INCLUDE_VARIABLE}={} has no cuda_fp16.h", folder.display());
            Err(CudaError::NoHeaders { reason })
        };
    }
    let mut folders: Vec<PathBuf> = site_packages()
        .iter()
        .map(|folder| folder.join("nvidia/cuda_runtime/include"))
        .collect();
    folders.push(PathBuf::from("/usr/local/cuda/include"));
    folders.iter().find(|folder| has(folder)).cloned().ok_or_else(|| {
        let tried: Vec<String> = folders
            .iter()
            .map(|folder| folder.display().to_string())
            .collect();
        CudaError::NoHeaders {
            reason: format!("no cuda_fp16.h in {}", tried.join(", ")),
        }
    })
}

/// Why a library does not load, in the system's words.
pub fn reason(error: &libloading::Error) -> String {
    let source = std::error::Error::source(error);
    source.map_or_else(|| error.to_string(), ToString::to_string)
}

/// Where the `python3` on PATH keeps its packages; nothing if there is none.
pub fn site_packages() -> Vec<PathBuf> {
    let script = "import site, sysconfig\n\
                  print('\\n'.join([sysconfig.get_path('purelib'), sysconfig.get_path('platlib'), \
                  *site.getsitepackages(), site.getusersitepackages()]))";
    let output = Command::new("python3")
        .args(["-c", script])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    let Ok(output) = output else { return Vec::new() };
    let mut folders: Vec<PathBuf> = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let folder = PathBuf::from(line);
        if !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    folders
}
