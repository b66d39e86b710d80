//! cuBLAS, loaded at run time, for the one product that large batches need: f16 by f16 with f32 sums.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::PathBuf;
use std::ptr;
use std::rc::Rc;

use libloading::Library;

use crate::driver::context::Stream;
use crate::driver::gpu::Gpu;
use crate::error::CudaError;
use crate::launch::DeviceBuffer;
use crate::pack::find;

/// Names a libcublas.
pub const LIBRARY_VARIABLE: &str = "GALVANI_CUBLAS";

/// CUDA 13's cuBLAS has no Volta.
const VOLTA_MAJOR: u32 = 12;
const VOLTA_SM: u32 = 70;

type Status = c_int;
type Handle = *mut c_void;

// Values of cublas_api.h and library_types.h, the same in 12 and 13.
const SUCCESS: Status = 0;
const OPERATION_NONE: c_int = 0;
const OPERATION_TRANSPOSE: c_int = 1;
const TYPE_F32: c_int = 0;
const TYPE_F16: c_int = 2;
const COMPUTE_F32: c_int = 68;
const ALGORITHM_DEFAULT: c_int = -1;
/// Partial sums of a split product are added in f32, not f16.
const MATH_NO_REDUCED_REDUCTION: c_int = 16;

/// What the result is stored as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Rounded once at the end.
    F16,
    /// As summed.
    F32,
}

impl Output {
    const fn bytes(self) -> usize {
        match self {
            Self::F16 => 2,
            Self::F32 => 4,
        }
    }
}

/// `output[m, n] = activations[m, k] * weights[n, k]^T`, all row-major; the output is dense.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    /// Rows of activations.
    pub m: u32,
    /// Rows of weights.
    pub n: u32,
    /// Columns of both.
    pub k: u32,
    /// f16 // [m, activation_stride]
    pub activations: DeviceBuffer,
    /// In halves: at least k.
    pub activation_stride: u32,
    /// f16 // [n, weight_stride]
    pub weights: DeviceBuffer,
    /// In halves: at least k.
    pub weight_stride: u32,
    /// [m, n]
    pub output: DeviceBuffer,
    /// The type of `output`.
    pub store: Output,
}

struct Functions {
    create: unsafe extern "C" fn(*mut Handle) -> Status,
    destroy: unsafe extern "C" fn(Handle) -> Status,
    version: unsafe extern "C" fn(Handle, *mut c_int) -> Status,
    set_stream: unsafe extern "C" fn(Handle, *mut c_void) -> Status,
    set_workspace: unsafe extern "C" fn(Handle, *mut c_void, usize) -> Status,
    set_math: unsafe extern "C" fn(Handle, c_int) -> Status,
    words: unsafe extern "C" fn(Status) -> *const c_char,
    gemm: Gemm,
}

type Gemm = unsafe extern "C" fn(
    Handle,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    *const c_void,
    *const c_void,
    c_int,
    c_int,
    *const c_void,
    c_int,
    c_int,
    *const c_void,
    *mut c_void,
    c_int,
    c_int,
    c_int,
    c_int,
) -> Status;

/// A cuBLAS handle on a GPU's stream.
pub struct Blas {
    handle: Handle,
    functions: Functions,
    /// `12.9`
    pub version: String,
    /// Where it was found.
    pub path: PathBuf,
    _stream: Rc<Stream>,
    _library: Library,
}

impl Blas {
    /// Loads it for a GPU. `workspace` is scratch of the GPU's arena: with it a recorded product allocates nothing.
    ///
    /// # Errors
    /// It is not found, its version does not know the device, or its own.
    pub fn load(gpu: &Gpu, workspace: &DeviceBuffer) -> Result<Self, CudaError> {
        let mut tried = Vec::new();
        for path in libraries(gpu.info().sm)? {
            // SAFETY: cuBLAS by name, found where the user or the system keeps it; loading runs its initialisers.
            match unsafe { Library::new(&path) } {
                Ok(library) => return Self::new(library, path, gpu, workspace),
                Err(error) => tried.push(format!("{} ({})", path.display(), find::reason(&error))),
            }
        }
        Err(CudaError::NoBlas {
            reason: format!("not found: {}", tried.join(", ")),
        })
    }

    fn new(library: Library, path: PathBuf, gpu: &Gpu, workspace: &DeviceBuffer) -> Result<Self, CudaError> {
        let wrong = |reason: String| CudaError::NoBlas {
            reason: format!("{}: {reason}", path.display()),
        };
        let functions = Functions::load(&library).map_err(|error| wrong(error.to_string()))?;
        let mut handle = ptr::null_mut();
        // SAFETY: a valid pointer; the GPU's context is current on this thread.
        let status = unsafe { (functions.create)(&mut handle) };
        functions.check("cublasCreate", status)?;
        let mut blas = Self {
            handle,
            functions,
            version: String::new(),
            path: path.clone(),
            _stream: gpu.stream().clone(),
            _library: library,
        };
        let mut version = 0;
        // SAFETY: the handle is alive in all of these; stream and workspace outlive it or are the arena's.
        unsafe {
            let functions = &blas.functions;
            functions.check("cublasGetVersion", (functions.version)(handle, &mut version))?;
            let stream = gpu.stream().handle.cast();
            functions.check("cublasSetStream", (functions.set_stream)(handle, stream))?;
            // After the stream, which resets it.
            let address = ptr::with_exposed_provenance_mut(workspace.address() as usize);
            functions.check(
                "cublasSetWorkspace",
                (functions.set_workspace)(handle, address, workspace.bytes()),
            )?;
            functions.check(
                "cublasSetMathMode",
                (functions.set_math)(handle, MATH_NO_REDUCED_REDUCTION),
            )?;
        }
        let major = u32::try_from(version).unwrap_or(0) / 10_000;
        blas.version = format!("{major}.{}", version % 10_000 / 100);
        known(major, gpu.info().sm).map_err(wrong)?;
        Ok(blas)
    }

    /// Starts a product on the GPU's stream; may be recorded.
    ///
    /// # Errors
    /// A buffer is too small, or cuBLAS's own.
    pub fn product(&self, product: &Product) -> Result<(), CudaError> {
        let Product { m, n, k, .. } = *product;
        let strides = [product.activation_stride, product.weight_stride];
        if strides.iter().any(|stride| *stride < k) {
            return Err(CudaError::Blas {
                call: "cublasGemmEx",
                reason: format!("strides {strides:?}, allowed: k, {k}, and more"),
            });
        }
        let size = |rows: u32, stride: u32, columns: u32, bytes: usize| {
            let before = (rows as usize).saturating_sub(1) * stride as usize;
            (before + columns as usize).saturating_mul(bytes)
        };
        product.activations.range(0, size(m, strides[0], k, 2))?;
        product.weights.range(0, size(n, strides[1], k, 2))?;
        product.output.range(0, size(m, n, n, product.store.bytes()))?;
        let number = |value: u32| {
            c_int::try_from(value)
                .ok()
                .filter(|value| *value > 0)
                .ok_or(CudaError::Blas {
                    call: "cublasGemmEx",
                    reason: format!("m {m}, n {n}, k {k}, allowed: 1 to {}", c_int::MAX),
                })
        };
        let (m, n, k) = (number(m)?, number(n)?, number(k)?);
        let (activation_stride, weight_stride) = (number(strides[0])?, number(strides[1])?);
        let stored = match product.store {
            Output::F16 => TYPE_F16,
            Output::F32 => TYPE_F32,
        };
        let (one, zero) = (1f32, 0f32);
        let pointer =
            |buffer: &DeviceBuffer| ptr::with_exposed_provenance_mut::<c_void>(buffer.address() as usize);
        // SAFETY: the handle is alive; the matrices lie in their buffers. cuBLAS thinks in columns: its first matrix is
        // weights^T, read transposed, and what it writes as columns of n is our rows of n.
        let status = unsafe {
            (self.functions.gemm)(
                self.handle,
                OPERATION_TRANSPOSE,
                OPERATION_NONE,
                n,
                m,
                k,
                (&raw const one).cast(),
                pointer(&product.weights),
                TYPE_F16,
                weight_stride,
                pointer(&product.activations),
                TYPE_F16,
                activation_stride,
                (&raw const zero).cast(),
                pointer(&product.output),
                stored,
                n,
                COMPUTE_F32,
                ALGORITHM_DEFAULT,
            )
        };
        self.functions.check("cublasGemmEx", status)
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: created in `new`, destroyed once, before the library is closed.
        let _ = unsafe { (self.functions.destroy)(self.handle) };
    }
}

impl Functions {
    fn load(library: &Library) -> Result<Self, libloading::Error> {
        // SAFETY: names and signatures are those of cublas_api.h, the same in 12 and 13.
        unsafe {
            Ok(Self {
                create: *library.get(b"cublasCreate_v2\0")?,
                destroy: *library.get(b"cublasDestroy_v2\0")?,
                version: *library.get(b"cublasGetVersion_v2\0")?,
                set_stream: *library.get(b"cublasSetStream_v2\0")?,
                set_workspace: *library.get(b"cublasSetWorkspace_v2\0")?,
                set_math: *library.get(b"cublasSetMathMode\0")?,
                words: *library.get(b"cublasGetStatusString\0")?,
                gemm: *library.get(b"cublasGemmEx\0")?,
            })
        }
    }

    fn check(&self, call: &'static str, status: Status) -> Result<(), CudaError> {
        if status == SUCCESS {
            return Ok(());
        }
        // SAFETY: gives a static string for every number.
        let words = unsafe { CStr::from_ptr((self.words)(status)) };
        Err(CudaError::Blas {
            call,
            reason: words.to_string_lossy().into_owned(),
        })
    }
}

fn known(major: u32, sm: u32) -> Result<(), String> {
    if sm <= VOLTA_SM && major > VOLTA_MAJOR {
        return Err(format!(
            "version {major}, allowed for sm_{sm}: {VOLTA_MAJOR} (13 removed Volta)"
        ));
    }
    Ok(())
}

/// What to load, in the order to try. Volta has only 12.
fn libraries(sm: u32) -> Result<Vec<PathBuf>, CudaError> {
    if let Some(named) = std::env::var_os(LIBRARY_VARIABLE) {
        let path = PathBuf::from(named);
        return if path.is_file() {
            Ok(vec![path])
        } else {
            let reason = format!("{LIBRARY_VARIABLE}={} is not a file", path.display());
            Err(CudaError::NoBlas { reason })
        };
    }
    let (name, folder) = if cfg!(windows) {
        ("cublas64_12.dll", "nvidia/cublas/bin")
    } else {
        ("libcublas.so.12", "nvidia/cublas/lib")
    };
    let packaged = find::site_packages()
        .into_iter()
        .map(|packages| packages.join(folder).join(name));
    let mut found: Vec<PathBuf> = packaged.filter(|path| path.is_file()).collect();
    found.push(PathBuf::from(name));
    found.push(PathBuf::from("/usr/local/cuda/lib64").join(name));
    if sm > VOLTA_SM {
        found.push(PathBuf::from(name.replace("12", "13")));
        found.push(PathBuf::from("/usr/local/cuda/lib64").join(name.replace("12", "13")));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volta_has_only_twelve() {
        for (major, sm, want) in [
            (12, 70, true),
            (13, 70, false),
            (12, 90, true),
            (13, 90, true),
            (13, 75, true),
        ] {
            assert_eq!(known(major, sm).is_ok(), want, "{major} on sm_{sm}");
        }
        let names = |sm| {
            libraries(sm)
                .unwrap()
                .iter()
                .any(|path| path.to_string_lossy().contains("13"))
        };
        assert!(!names(70) && names(90));
    }
}
