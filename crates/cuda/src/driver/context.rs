//! What is destroyed with its last user: the device's context, a stream, memory, an event.

use std::ffi::c_void;
use std::rc::Rc;

use cudarc::driver::result::{ctx, device, event, free_sync, malloc_sync, primary_ctx, stream};
use cudarc::driver::sys;

use crate::driver::probe::{DeviceInfo, call};
use crate::error::CudaError;

/// The device's primary context, current on the thread that made it. Its users stay on that thread: none is `Send`.
pub struct Context {
    device: sys::CUdevice,
}

impl Context {
    /// Makes it current.
    pub fn new(info: &DeviceInfo) -> Result<Rc<Self>, CudaError> {
        let ordinal = i32::try_from(info.ordinal).unwrap_or(i32::MAX);
        let device = device::get(ordinal).map_err(call("cuDeviceGet"))?;
        // SAFETY: the device is of this driver; it is released in `drop`.
        let handle = unsafe { primary_ctx::retain(device) }.map_err(call("cuDevicePrimaryCtxRetain"))?;
        let context = Rc::new(Self { device });
        // SAFETY: the context was just retained.
        unsafe { ctx::set_current(handle) }.map_err(call("cuCtxSetCurrent"))?;
        Ok(context)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once in `new`. A failure at the end has nobody to go to.
        let _ = unsafe { primary_ctx::release(self.device) };
    }
}

/// An ordered queue of work.
pub struct Stream {
    pub(crate) handle: sys::CUstream,
    _context: Rc<Context>,
}

impl Stream {
    pub(crate) fn new(context: &Rc<Context>) -> Result<Rc<Self>, CudaError> {
        let handle = stream::create(stream::StreamKind::NonBlocking).map_err(call("cuStreamCreate"))?;
        Ok(Rc::new(Self {
            handle,
            _context: context.clone(),
        }))
    }

    /// Waits for everything.
    ///
    /// # Errors
    /// What a kernel ran into.
    pub fn wait(&self) -> Result<(), CudaError> {
        // SAFETY: alive until `drop`.
        unsafe { stream::synchronize(self.handle) }.map_err(call("cuStreamSynchronize"))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once.
        let _ = unsafe { stream::destroy(self.handle) };
    }
}

/// One allocation.
pub struct Memory {
    pub(crate) address: u64,
    _context: Rc<Context>,
}

impl Memory {
    pub(crate) fn new(context: &Rc<Context>, bytes: usize) -> Result<Rc<Self>, CudaError> {
        // SAFETY: the context is current.
        let address = unsafe { malloc_sync(bytes) }.map_err(|error| CudaError::Arena {
            bytes,
            reason: call("cuMemAlloc")(error).to_string(),
        })?;
        Ok(Rc::new(Self {
            address,
            _context: context.clone(),
        }))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`, freed once; the driver waits for work that uses it.
        let _ = unsafe { free_sync(self.address) };
    }
}

/// A point in a stream, with its time.
pub struct Event {
    handle: sys::CUevent,
}

impl Event {
    pub(crate) fn record(stream: &Stream) -> Result<Self, CudaError> {
        let handle = event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).map_err(call("cuEventCreate"))?;
        let event = Self { handle };
        // SAFETY: both are alive.
        unsafe { event::record(event.handle, stream.handle) }.map_err(call("cuEventRecord"))?;
        Ok(event)
    }

    /// Milliseconds from `start` to this point, waiting for it.
    pub(crate) fn since(&self, start: &Self) -> Result<f32, CudaError> {
        // SAFETY: both were recorded and are alive.
        unsafe {
            event::synchronize(self.handle).map_err(call("cuEventSynchronize"))?;
            event::elapsed(start.handle, self.handle).map_err(call("cuEventElapsedTime"))
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made in `record`, destroyed once.
        let _ = unsafe { event::destroy(self.handle) };
    }
}

/// Copies to the device, in the stream's order; returns when the host's bytes may be reused.
pub(crate) fn upload(stream: &Stream, address: u64, bytes: &[u8]) -> Result<(), CudaError> {
    // SAFETY: the caller checked that the range is its own; the wait keeps the host's bytes borrowed until the copy is done.
    let status = unsafe {
        sys::cuMemcpyHtoDAsync_v2(
            address,
            bytes.as_ptr().cast::<c_void>(),
            bytes.len(),
            stream.handle,
        )
    };
    status.result().map_err(call("cuMemcpyHtoDAsync"))?;
    stream.wait()
}

/// Copies from the device, in the stream's order.
pub(crate) fn download(stream: &Stream, address: u64, bytes: &mut [u8]) -> Result<(), CudaError> {
    // SAFETY: as in `upload`.
    let status = unsafe {
        sys::cuMemcpyDtoHAsync_v2(
            bytes.as_mut_ptr().cast::<c_void>(),
            address,
            bytes.len(),
            stream.handle,
        )
    };
    status.result().map_err(call("cuMemcpyDtoHAsync"))?;
    stream.wait()
}
