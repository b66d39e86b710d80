//! Is there a driver, what version, which devices?

use std::ffi::c_int;

use cudarc::driver::result::{DriverError, device};
use cudarc::driver::sys::{self, CUdevice_attribute_enum as Attribute};

use crate::error::CudaError;

/// CUDA 12.0, driver branch 525: the first that runs machine code of any compiler 12.
const VERSION_MIN: u32 = 12_000;
/// CUDA 13.0, driver branch 580: the last with Volta.
const VERSION_VOLTA_LAST: u32 = 13_000;
/// The driver must know the PTX that NVRTC 12.9 writes (8.8).
pub const VERSION_PTX: u32 = 12_090;

/// Everything this crate calls. cudarc panics on a function that the driver lacks, so they are looked up first.
const FUNCTIONS: [&str; 39] = [
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDeviceTotalMem_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxSetCurrent",
    "cuModuleLoadDataEx",
    "cuModuleUnload",
    "cuModuleGetFunction",
    "cuFuncSetAttribute",
    "cuFuncGetAttribute",
    "cuLaunchKernel",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuEventElapsedTime",
    "cuEventDestroy_v2",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphGetNodes",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
];

/// A driver that is there and complete.
#[derive(Clone, Copy, Debug)]
pub struct Driver {
    /// The CUDA version that it is for: 13000 for 13.0.
    pub version: u32,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its number for the driver.
    pub ordinal: usize,
    /// `Tesla V100-SXM2-32GB`
    pub name: String,
    /// Compute capability times ten.
    pub sm: u32,
    /// Multiprocessors.
    pub sm_count: u32,
    /// All of its memory.
    pub memory_bytes: usize,
}

impl Driver {
    /// Loads and starts the driver.
    ///
    /// # Errors
    /// There is none, it lacks a function, is too old, or sees no GPU.
    pub fn load() -> Result<Self, CudaError> {
        // SAFETY: loads libcuda by its usual names, whose initialisers are meant to be run in any process.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudaError::NoDriver {
                reason: "libcuda.so.1 (nvcuda.dll) cannot be loaded".to_owned(),
            });
        }
        for name in FUNCTIONS {
            // SAFETY: the library was just seen to load; the symbol is only looked up.
            let found = unsafe {
                sys::culib()
                    .get::<unsafe extern "C" fn()>(name.as_bytes())
                    .is_ok()
            };
            if !found {
                return Err(CudaError::NoDriver {
                    reason: format!("libcuda lacks {name}"),
                });
            }
        }
        let version = version()?;
        judge(version)?;
        // SAFETY: any flags but 0 are refused by it.
        let status = unsafe { sys::cuInit(0) };
        started(status, version)?;
        Ok(Self { version })
    }

    /// All GPUs.
    ///
    /// # Errors
    /// A call fails, or there is none.
    pub fn devices(&self) -> Result<Vec<DeviceInfo>, CudaError> {
        let count = device::get_count().map_err(call("cuDeviceGetCount"))?;
        let devices: Vec<_> = (0..count).map(info).collect::<Result<_, _>>()?;
        if devices.is_empty() {
            return Err(no_gpu(self.version));
        }
        Ok(devices)
    }

    /// One GPU.
    ///
    /// # Errors
    /// There is none of this number.
    pub fn device(&self, ordinal: usize) -> Result<DeviceInfo, CudaError> {
        let devices = self.devices()?;
        let count = devices.len();
        let found = devices.into_iter().nth(ordinal);
        found.ok_or(CudaError::NoSuchGpu { ordinal, count })
    }
}

fn version() -> Result<u32, CudaError> {
    let mut version: c_int = 0;
    // SAFETY: a valid pointer; the function needs no cuInit.
    let status = unsafe { sys::cuDriverGetVersion(&mut version) };
    status.result().map_err(call("cuDriverGetVersion"))?;
    Ok(u32::try_from(version).unwrap_or(0))
}

fn judge(version: u32) -> Result<(), CudaError> {
    if version < VERSION_MIN {
        let reason = "allowed: CUDA 12.0 or later (driver 525; 580 is the last branch with V100)".to_owned();
        return Err(CudaError::DriverVersion { version, reason });
    }
    Ok(())
}

fn started(status: sys::CUresult, version: u32) -> Result<(), CudaError> {
    match status {
        sys::CUresult::CUDA_SUCCESS => Ok(()),
        sys::CUresult::CUDA_ERROR_NO_DEVICE => Err(no_gpu(version)),
        sys::CUresult::CUDA_ERROR_STUB_LIBRARY => Err(CudaError::NoDriver {
            reason: "libcuda is the toolkit's stub; the driver's own must come first in the library path"
                .to_owned(),
        }),
        other => Err(call("cuInit")(DriverError(other))),
    }
}

fn no_gpu(version: u32) -> CudaError {
    let note = if version > VERSION_VOLTA_LAST {
        "; a V100 here needs driver 580 (CUDA 13.0), the last branch that knows Volta"
    } else {
        ""
    };
    CudaError::NoGpu { version, note }
}

fn info(ordinal: c_int) -> Result<DeviceInfo, CudaError> {
    let handle = device::get(ordinal).map_err(call("cuDeviceGet"))?;
    let attribute = |which| {
        // SAFETY: the handle is of this driver.
        let value = unsafe { device::get_attribute(handle, which) };
        let value = value.map_err(call("cuDeviceGetAttribute"))?;
        Ok(u32::try_from(value).unwrap_or(0))
    };
    let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    Ok(DeviceInfo {
        ordinal: usize::try_from(ordinal).unwrap_or(0),
        name: device::get_name(handle).map_err(call("cuDeviceGetName"))?,
        sm: major * 10 + minor,
        sm_count: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        // SAFETY: the handle is of this driver.
        memory_bytes: unsafe { device::total_mem(handle) }.map_err(call("cuDeviceTotalMem"))?,
    })
}

/// Names the call of an error.
pub(crate) fn call(name: &'static str) -> impl Fn(DriverError) -> CudaError {
    move |error| {
        let words = |text: Result<&std::ffi::CStr, DriverError>| {
            text.map_or("unknown".to_owned(), |text| text.to_string_lossy().into_owned())
        };
        CudaError::Driver {
            call: name,
            reason: format!("{} ({})", words(error.error_string()), words(error.error_name())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_judged() {
        for (version, want) in [
            (11_080, false),
            (12_000, true),
            (12_090, true),
            (13_000, true),
            (13_020, true),
        ] {
            assert_eq!(judge(version).is_ok(), want, "{version}");
        }
        let message = judge(11_080).unwrap_err().to_string();
        assert!(
            message.contains("CUDA 11.8") && message.contains("580"),
            "{message}"
        );
    }

    #[test]
    fn a_driver_past_volta_is_named() {
        let missing = sys::CUresult::CUDA_ERROR_NO_DEVICE;
        for (version, want) in [(13_000, false), (13_010, true)] {
            let message = started(missing, version).unwrap_err().to_string();
            assert_eq!(message.contains("driver 580"), want, "{message}");
            assert!(message.contains("sees no GPU"), "{message}");
        }
        let stub = started(sys::CUresult::CUDA_ERROR_STUB_LIBRARY, 13_000).unwrap_err();
        assert!(matches!(stub, CudaError::NoDriver { .. }), "{stub}");
        assert!(started(sys::CUresult::CUDA_SUCCESS, 13_000).is_ok());
    }

    /// Where there is a driver, it must answer; where there is none, that must be the error.
    #[test]
    fn a_machine_without_a_driver_says_so() {
        // SAFETY: as in `load`.
        let present = unsafe { sys::is_culib_present() };
        match Driver::load() {
            Ok(driver) => assert!(present && driver.version >= VERSION_MIN),
            Err(CudaError::NoDriver { reason }) => {
                assert!(!present || reason.contains("libcuda"), "{reason}")
            }
            Err(other) => assert!(present, "{other}"),
        }
    }
}
