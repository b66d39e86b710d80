//! NVRTC, loaded at run time. Volta needs version 12: 13 has no sm_70.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::ptr;

use libloading::Library;

use crate::arch::Arch;
use crate::error::CudaError;
use crate::kernels::KernelRow;
use crate::pack::find;
use crate::sources;

type Status = c_int;
type Handle = *mut c_void;

const SUCCESS: Status = 0;

/// Flags of every unit. No fast mathematics: a division is a division and a subnormal stays. Contraction is fixed in
/// the PTX, so the interpreter and every driver see the same fused operations.
const OPTIONS: [&str; 7] = [
    "--std=c++17",
    "-default-device",
    "--fmad=true",
    "--ftz=false",
    "--prec-div=true",
    "--prec-sqrt=true",
    "--dopt=on",
];

/// A compiled unit: machine code where the architecture is real, and the PTX it came from.
pub struct Unit {
    /// ELF of one architecture.
    pub cubin: Option<Vec<u8>>,
    /// Text, without the closing zero.
    pub ptx: Vec<u8>,
}

/// The compiler. It may be used from several threads at once.
pub struct Compiler {
    // Keeps the functions' code in place.
    _library: Library,
    functions: Functions,
    /// Where it was found.
    pub path: PathBuf,
    /// `V12.9.86`
    pub version: String,
    /// The folder of CUDA's headers.
    pub include: PathBuf,
}

struct Functions {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> Status,
    error: unsafe extern "C" fn(Status) -> *const c_char,
    create: unsafe extern "C" fn(
        *mut Handle,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> Status,
    destroy: unsafe extern "C" fn(*mut Handle) -> Status,
    compile: unsafe extern "C" fn(Handle, c_int, *const *const c_char) -> Status,
    log: [Getter; 2],
    ptx: [Getter; 2],
    cubin: [Getter; 2],
}

/// `nvrtcGetXSize(program, &mut size)` and `nvrtcGetX(program, bytes)`: both take a program and a pointer.
type Getter = unsafe extern "C" fn(Handle, *mut c_void) -> Status;

impl Functions {
    fn load(library: &Library) -> Result<Self, libloading::Error> {
        // SAFETY: the names and signatures are those of nvrtc.h of CUDA 12, whose functions never changed since CUDA 8
        // (nvrtcGetCUBIN since 11.1).
        unsafe {
            Ok(Self {
                version: *library.get(b"nvrtcVersion\0")?,
                error: *library.get(b"nvrtcGetErrorString\0")?,
                create: *library.get(b"nvrtcCreateProgram\0")?,
                destroy: *library.get(b"nvrtcDestroyProgram\0")?,
                compile: *library.get(b"nvrtcCompileProgram\0")?,
                log: [
                    *library.get(b"nvrtcGetProgramLogSize\0")?,
                    *library.get(b"nvrtcGetProgramLog\0")?,
                ],
                ptx: [
                    *library.get(b"nvrtcGetPTXSize\0")?,
                    *library.get(b"nvrtcGetPTX\0")?,
                ],
                cubin: [
                    *library.get(b"nvrtcGetCUBINSize\0")?,
                    *library.get(b"nvrtcGetCUBIN\0")?,
                ],
            })
        }
    }
}

impl Compiler {
    /// Finds and loads the compiler, and the headers it needs.
    ///
    /// # Errors
    /// Either is missing, or the library is not of version 12.
    pub fn find() -> Result<Self, CudaError> {
        let mut tried = Vec::new();
        for path in find::libraries()? {
            // SAFETY: loading runs the library's initialisers; it is NVRTC by name, found where the user or the system
            // keeps it.
            match unsafe { Library::new(&path) } {
                Ok(library) => return Self::new(library, path, find::headers()?),
                Err(error) => tried.push(format!("{} ({})", path.display(), find::reason(&error))),
            }
        }
        Err(CudaError::NoCompiler {
            reason: format!("not found: {}", tried.join(", ")),
        })
    }

    fn new(library: Library, path: PathBuf, include: PathBuf) -> Result<Self, CudaError> {
        let wrong = |reason: String| CudaError::NoCompiler {
            reason: format!("{}: {reason}", path.display()),
        };
        let functions = Functions::load(&library).map_err(|error| wrong(error.to_string()))?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: two valid pointers.
        let status = unsafe { (functions.version)(&mut major, &mut minor) };
        if status != SUCCESS {
            return Err(wrong(format!("nvrtcVersion says {status}")));
        }
        supported(major, minor).map_err(&wrong)?;
        let mut compiler = Self {
            _library: library,
            functions,
            path: path.clone(),
            version: String::new(),
            include,
        };
        // The release alone would not tell 12.9.41 from 12.9.86: PTX does.
        let probe = compiler.text(
            "extern \"C\" __global__ void probe() {}",
            "probe.cu",
            Arch::Compute70,
            &[],
        );
        let unit = probe.map_err(&wrong)?;
        let version = String::from_utf8_lossy(&unit.ptx).lines().find_map(|line| {
            line.rsplit_once(", V")
                .map(|(_, version)| format!("V{}", version.trim()))
        });
        compiler.version = version.unwrap_or(format!("V{major}.{minor}"));
        Ok(compiler)
    }

    /// The options of a row's unit, but for the include folder, whose contents and not whose place matter.
    pub fn options(row: &KernelRow, arch: Arch) -> Vec<String> {
        let mut all: Vec<String> = OPTIONS.iter().map(|option| (*option).to_owned()).collect();
        all.push(format!("--gpu-architecture={arch}"));
        all.extend(
            row.macros()
                .iter()
                .map(|(name, value)| format!("-D{name}={value}")),
        );
        all
    }

    /// Compiles one row. Machine code comes with the PTX it was made from, which is that of its virtual architecture.
    ///
    /// # Errors
    /// The compiler's errors and warnings.
    pub fn compile(&self, row: &KernelRow, arch: Arch) -> Result<Unit, CudaError> {
        self.compile_text(row, sources::find(row.source).unwrap_or_default(), arch)
    }

    /// Compiles a text in place of the row's source.
    ///
    /// # Errors
    /// The compiler's errors and warnings.
    pub fn compile_text(&self, row: &KernelRow, source: &str, arch: Arch) -> Result<Unit, CudaError> {
        let options = Self::options(row, arch);
        self.text(source, row.source, arch, &options)
            .map_err(|log| CudaError::Compile {
                symbol: row.symbol.clone(),
                arch: arch.name(),
                log,
            })
    }

    fn text(&self, source: &str, name: &str, arch: Arch, options: &[String]) -> Result<Unit, String> {
        let program = Program::new(&self.functions, source, name)?;
        let mut options = options.to_vec();
        options.push(format!("--include-path={}", self.include.display()));
        let status = program.compile(&options)?;
        let log = program.bytes(&self.functions.log)?;
        let log = String::from_utf8_lossy(&log).trim().to_owned();
        if status != SUCCESS {
            return Err(format!("{}\n{log}", program.says(status)));
        }
        let faults: Vec<&str> = log.lines().filter(|line| is_warning(line)).collect();
        if !faults.is_empty() {
            return Err(format!("warnings are errors:\n{log}"));
        }
        Ok(Unit {
            cubin: if arch.is_ptx() {
                None
            } else {
                Some(program.bytes(&self.functions.cubin)?)
            },
            ptx: program.bytes(&self.functions.ptx)?,
        })
    }
}

/// NVRTC says at each Volta unit that Volta is old; anything else that it warns of counts.
fn is_warning(line: &str) -> bool {
    let line = line.to_ascii_lowercase();
    let old = line.contains("architectures prior to") || line.contains("deprecated and may be removed");
    line.contains("warning") && !old
}

fn supported(major: c_int, minor: c_int) -> Result<(), String> {
    match (major, minor) {
        (12, 0..) => Ok(()),
        (13.., _) => Err(format!(
            "version {major}.{minor}, allowed: 12.x (CUDA 13 removed sm_70)"
        )),
        _ => Err(format!("version {major}.{minor}, allowed: 12.x")),
    }
}

struct Program<'a> {
    functions: &'a Functions,
    handle: Handle,
}

impl<'a> Program<'a> {
    fn new(functions: &'a Functions, source: &str, name: &str) -> Result<Self, String> {
        let text = |text: &str| CString::new(text).map_err(|_| format!("{name}: a zero byte in the text"));
        let (source, file) = (text(&sources::resolved(name, source))?, text(name)?);
        let mut names = Vec::new();
        let mut bodies = Vec::new();
        for (name, body) in sources::headers() {
            names.push(text(name)?);
            bodies.push(text(&body)?);
        }
        let pointers = |all: &[CString]| all.iter().map(|item| item.as_ptr()).collect::<Vec<_>>();
        let (name_pointers, body_pointers) = (pointers(&names), pointers(&bodies));
        let mut handle = ptr::null_mut();
        // SAFETY: all strings end in zero and outlive the call, which copies them; the counts are the arrays' lengths.
        let status = unsafe {
            (functions.create)(
                &mut handle,
                source.as_ptr(),
                file.as_ptr(),
                names.len() as c_int,
                body_pointers.as_ptr(),
                name_pointers.as_ptr(),
            )
        };
        let program = Self { functions, handle };
        if status == SUCCESS {
            Ok(program)
        } else {
            Err(program.says(status))
        }
    }

    fn compile(&self, options: &[String]) -> Result<Status, String> {
        let options: Vec<CString> = options
            .iter()
            .map(|option| {
                CString::new(option.as_str()).map_err(|_| format!("option {option:?}: a zero byte"))
            })
            .collect::<Result<_, _>>()?;
        let pointers: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the program is alive; the strings end in zero and outlive the call.
        Ok(unsafe { (self.functions.compile)(self.handle, pointers.len() as c_int, pointers.as_ptr()) })
    }

    /// What a pair of getters gives, without a closing zero.
    fn bytes(&self, [size, get]: &[Getter; 2]) -> Result<Vec<u8>, String> {
        let mut length = 0usize;
        // SAFETY: the program is alive; the size getter writes one `size_t`.
        let status = unsafe { size(self.handle, (&raw mut length).cast()) };
        if status != SUCCESS {
            return Err(self.says(status));
        }
        let mut bytes = vec![0u8; length];
        // SAFETY: the getter writes as many bytes as its size getter said.
        let status = unsafe { get(self.handle, bytes.as_mut_ptr().cast()) };
        if status != SUCCESS {
            return Err(self.says(status));
        }
        // Texts end in a zero, ELF files have none to lose: theirs ends in a header table of fixed size.
        if bytes.last() == Some(&0) && !bytes.starts_with(b"\x7fELF") {
            bytes.pop();
        }
        Ok(bytes)
    }

    fn says(&self, status: Status) -> String {
        // SAFETY: gives a static string for every number.
        let text = unsafe { CStr::from_ptr((self.functions.error)(status)) };
        text.to_string_lossy().into_owned()
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: created by this library, destroyed once.
            unsafe { (self.functions.destroy)(&mut self.handle) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_version_12() {
        for (major, minor, want) in [
            (12, 0, true),
            (12, 9, true),
            (11, 8, false),
            (13, 0, false),
            (13, 4, false),
        ] {
            assert_eq!(supported(major, minor).is_ok(), want, "{major}.{minor}");
        }
        assert!(supported(13, 0).unwrap_err().contains("removed sm_70"));
    }

    #[test]
    fn old_architectures_are_no_warning() {
        for (line, want) in [
            (
                "nvrtc: warning : Architectures prior to '<compute/sm>_75' are deprecated and may be removed",
                false,
            ),
            (
                "a.cu(3): warning #177-D: variable \"x\" was declared but never referenced",
                true,
            ),
            (
                "ptxas warning : Value of threads per SM for entry k is out of range",
                true,
            ),
            ("", false),
        ] {
            assert_eq!(is_warning(line), want, "{line}");
        }
    }
}
