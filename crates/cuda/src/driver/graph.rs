//! A recorded sequence of launches, replayed as one.

use std::ptr;
use std::rc::Rc;

use cudarc::driver::result::{graph, stream};
use cudarc::driver::sys;

use crate::driver::context::{Memory, Stream};
use crate::driver::module::Modules;
use crate::driver::probe::call;
use crate::error::CudaError;

/// What was recorded, ready to run. It keeps alive what its kernels use.
pub struct Graph {
    executable: sys::CUgraphExec,
    stream: Rc<Stream>,
    nodes: usize,
    _modules: Rc<Modules>,
    _memory: Rc<Memory>,
}

impl Graph {
    /// Starts it, after everything that the stream has.
    ///
    /// # Errors
    /// The driver's.
    pub fn replay(&self) -> Result<(), CudaError> {
        // SAFETY: both are alive.
        unsafe { graph::launch(self.executable, self.stream.handle) }.map_err(call("cuGraphLaunch"))
    }

    /// Launches in it.
    pub fn nodes(&self) -> usize {
        self.nodes
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // A replay that still runs must not lose its code; a failure was or will be seen by who waits for results.
        let _ = self.stream.wait();
        // SAFETY: made by `finish`, destroyed once.
        let _ = unsafe { graph::exec_destroy(self.executable) };
    }
}

/// Starts recording: launches on the stream are kept and not run.
pub(crate) fn begin(of: &Stream) -> Result<(), CudaError> {
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // SAFETY: the stream is alive.
    unsafe { stream::begin_capture(of.handle, mode) }.map_err(call("cuStreamBeginCapture"))
}

/// A recorded graph before it is made executable.
struct Recorded(sys::CUgraph);

impl Drop for Recorded {
    fn drop(&mut self) {
        // SAFETY: given by the end of a capture, destroyed once.
        let _ = unsafe { graph::destroy(self.0) };
    }
}

/// Ends recording without a result.
pub(crate) fn abandon(of: &Stream) {
    // SAFETY: the stream is alive and recording; what comes back, if anything, is destroyed.
    let recorded = unsafe { stream::end_capture(of.handle) };
    if let Some(graph) = recorded.ok().filter(|graph| !graph.is_null()) {
        drop(Recorded(graph));
    }
}

/// Ends recording.
pub(crate) fn finish(
    of: &Rc<Stream>,
    modules: &Rc<Modules>,
    memory: &Rc<Memory>,
) -> Result<Graph, CudaError> {
    // SAFETY: the stream is alive and recording.
    let graph = unsafe { stream::end_capture(of.handle) }.map_err(call("cuStreamEndCapture"))?;
    if graph.is_null() {
        return Err(CudaError::Driver {
            call: "cuStreamEndCapture",
            reason: "no graph: something invalidated the recording".to_owned(),
        });
    }
    let recorded = Recorded(graph);
    let mut nodes = 0;
    // SAFETY: the graph is alive; a null array asks for the count.
    let status = unsafe { sys::cuGraphGetNodes(recorded.0, ptr::null_mut(), &mut nodes) };
    status.result().map_err(call("cuGraphGetNodes"))?;
    let mut executable = ptr::null_mut();
    // SAFETY: the graph is alive.
    let status = unsafe { sys::cuGraphInstantiateWithFlags(&mut executable, recorded.0, 0) };
    status.result().map_err(call("cuGraphInstantiateWithFlags"))?;
    Ok(Graph {
        executable,
        stream: of.clone(),
        nodes,
        _modules: modules.clone(),
        _memory: memory.clone(),
    })
}
