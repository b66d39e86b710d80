//! Kernels of a pack, loaded when first asked for.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CString, c_void};
use std::ptr;
use std::rc::Rc;

use cudarc::driver::result::module;
use cudarc::driver::sys::{self, CUfunction_attribute_enum as Attribute, CUjit_option_enum as Option_};

use crate::arch::Arch;
use crate::driver::context::Context;
use crate::driver::probe::call;
use crate::error::CudaError;
use crate::launch::Arg;
use crate::pack::file::{Entry, Pack};

const LOG_BYTES: usize = 8192;

/// The modules of one device.
pub struct Modules {
    pack: Pack,
    arch: Arch,
    loaded: RefCell<BTreeMap<String, Rc<Kernel>>>,
    context: Rc<Context>,
}

/// A loaded kernel.
pub struct Kernel {
    module: sys::CUmodule,
    pub(crate) function: sys::CUfunction,
    /// The pack's words on it.
    pub entry: Entry,
    // Outlives the module.
    _context: Rc<Context>,
}

impl Modules {
    pub(crate) fn new(context: &Rc<Context>, pack: Pack, arch: Arch) -> Rc<Self> {
        Rc::new(Self {
            pack,
            arch,
            loaded: RefCell::new(BTreeMap::new()),
            context: context.clone(),
        })
    }

    /// The pack.
    pub fn pack(&self) -> &Pack {
        &self.pack
    }

    /// Whether a kernel is loaded.
    pub fn has(&self, symbol: &str) -> bool {
        self.loaded.borrow().contains_key(symbol)
    }

    /// The kernel, loaded now if it was not.
    ///
    /// # Errors
    /// The pack has none, or the driver refuses it.
    pub fn kernel(&self, symbol: &str) -> Result<Rc<Kernel>, CudaError> {
        if let Some(kernel) = self.loaded.borrow().get(symbol) {
            return Ok(kernel.clone());
        }
        let (entry, code) = self
            .pack
            .find(symbol, self.arch)
            .ok_or_else(|| CudaError::Launch {
                symbol: symbol.to_owned(),
                reason: format!("the pack has no such kernel for {}", self.arch),
            })?;
        let kernel = Rc::new(Kernel::new(&self.context, entry.clone(), code)?);
        self.loaded.borrow_mut().insert(symbol.to_owned(), kernel.clone());
        Ok(kernel)
    }
}

impl Kernel {
    fn new(context: &Rc<Context>, entry: Entry, code: &[u8]) -> Result<Self, CudaError> {
        let refuse = |reason: String| CudaError::Launch {
            symbol: entry.symbol.clone(),
            reason,
        };
        let module = load(code).map_err(refuse)?;
        let name =
            CString::new(entry.symbol.as_str()).map_err(|_| refuse("a zero byte in the name".to_owned()))?;
        // SAFETY: the module is alive.
        let function = match unsafe { module::get_function(module, name) } {
            Ok(function) => function,
            Err(error) => {
                // SAFETY: loaded above, nothing of it is in use.
                let _ = unsafe { module::unload(module) };
                return Err(call("cuModuleGetFunction")(error));
            }
        };
        let kernel = Self {
            module,
            function,
            entry,
            _context: context.clone(),
        };
        if kernel.entry.shared_dynamic > 0 {
            let bytes = i32::try_from(kernel.entry.shared_dynamic).unwrap_or(i32::MAX);
            // SAFETY: the function is alive; without this a block has at most 48 KB.
            let status = unsafe {
                sys::cuFuncSetAttribute(
                    function,
                    Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                    bytes,
                )
            };
            status.result().map_err(call("cuFuncSetAttribute"))?;
        }
        Ok(kernel)
    }

    /// Registers and local bytes a thread, by the driver: for PTX the only ones who knows them.
    ///
    /// # Errors
    /// The driver's.
    pub fn resources(&self) -> Result<(u32, u32), CudaError> {
        let attribute = |which| {
            let mut value = 0;
            // SAFETY: the function is alive.
            let status = unsafe { sys::cuFuncGetAttribute(&mut value, which, self.function) };
            status.result().map_err(call("cuFuncGetAttribute"))?;
            Ok(u32::try_from(value).unwrap_or(0))
        };
        Ok((
            attribute(Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            attribute(Attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
        ))
    }

    /// Blocks that a multiprocessor holds, by the driver.
    ///
    /// # Errors
    /// The driver's.
    pub fn blocks(&self, threads: u32, shared_bytes: u32) -> Result<u32, CudaError> {
        let mut blocks = 0;
        let threads = i32::try_from(threads).unwrap_or(i32::MAX);
        // SAFETY: the function is alive.
        let status = unsafe {
            sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &mut blocks,
                self.function,
                threads,
                shared_bytes as usize,
            )
        };
        status
            .result()
            .map_err(call("cuOccupancyMaxActiveBlocksPerMultiprocessor"))?;
        Ok(u32::try_from(blocks).unwrap_or(0))
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // SAFETY: loaded once, in a context that this keeps; whoever launches holds this.
        let _ = unsafe { module::unload(self.module) };
    }
}

/// Loads machine code, or PTX for the driver to compile; an error brings the driver's log.
fn load(code: &[u8]) -> Result<sys::CUmodule, String> {
    // PTX must end in zero; for machine code one more byte does no harm.
    let mut image = code.to_vec();
    image.push(0);
    let mut log = vec![0u8; LOG_BYTES];
    let mut options = [
        Option_::CU_JIT_ERROR_LOG_BUFFER,
        Option_::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
    ];
    let mut values = [
        log.as_mut_ptr().cast::<c_void>(),
        ptr::without_provenance_mut(LOG_BYTES),
    ];
    let mut module = ptr::null_mut();
    // SAFETY: the image is whole (the pack's hash was checked) and ends in zero; the log has the size that is said; the
    // arrays have two items each.
    let status = unsafe {
        sys::cuModuleLoadDataEx(
            &mut module,
            image.as_ptr().cast::<c_void>(),
            2,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    status.result().map_err(|error| {
        let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
        let log = String::from_utf8_lossy(&log[..end]);
        format!("{}\n{log}", call("cuModuleLoadDataEx")(error))
            .trim()
            .to_owned()
    })?;
    Ok(module)
}

/// Whether a kernel takes such a launch.
///
/// # Errors
/// Thing, value, allowed.
pub(crate) fn allowed(
    entry: &Entry,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    args: &[Arg],
) -> Result<(), CudaError> {
    let refuse = |reason: String| {
        Err(CudaError::Launch {
            symbol: entry.symbol.clone(),
            reason,
        })
    };
    let threads = block.iter().try_fold(1u32, |all, one| all.checked_mul(*one));
    if !threads.is_some_and(|threads| (1..=entry.threads).contains(&threads)) {
        return refuse(format!("{block:?} threads, allowed: 1 to {}", entry.threads));
    }
    let limits = [i32::MAX as u32, 65_535, 65_535];
    if grid
        .iter()
        .zip(limits)
        .any(|(blocks, most)| !(1..=most).contains(blocks))
    {
        return refuse(format!("{grid:?} blocks, allowed: 1 to {limits:?}"));
    }
    if shared_bytes > entry.shared_dynamic {
        return refuse(format!(
            "{shared_bytes} bytes of shared memory, allowed: {}",
            entry.shared_dynamic
        ));
    }
    let sizes: Vec<u32> = args.iter().map(|arg| arg.bytes().1 as u32).collect();
    if sizes != entry.parameters {
        return refuse(format!(
            "arguments of {sizes:?} bytes, allowed: {:?}",
            entry.parameters
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::file::Kind;

    #[test]
    fn launches_are_checked() {
        let entry = Entry {
            symbol: "k".to_owned(),
            arch: Arch::Sm70,
            kind: Kind::Cubin,
            offset: 0,
            length: 1,
            sha256: String::new(),
            made_from: String::new(),
            threads: 128,
            min_blocks: 1,
            shared_dynamic: 1024,
            shared_static: 0,
            registers: 32,
            spilled: 0,
            parameters: vec![8, 4],
            defines: BTreeMap::new(),
        };
        let args = [Arg::Ptr(0), Arg::F32(0.0)];
        let most = i32::MAX as u32;
        for (grid, block, shared, args, want) in [
            ([1, 1, 1], [128, 1, 1], 1024, &args[..], ""),
            ([most, 65_535, 65_535], [4, 4, 8], 0, &args, ""),
            ([0, 1, 1], [128, 1, 1], 0, &args, "blocks"),
            ([1, 65_536, 1], [128, 1, 1], 0, &args, "blocks"),
            ([most + 1, 1, 1], [128, 1, 1], 0, &args, "blocks"),
            ([1, 1, 1], [129, 1, 1], 0, &args, "threads"),
            ([1, 1, 1], [0, 1, 1], 0, &args, "threads"),
            ([1, 1, 1], [u32::MAX, 2, 1], 0, &args, "threads"),
            ([1, 1, 1], [128, 1, 1], 1025, &args, "shared memory"),
            ([1, 1, 1], [128, 1, 1], 0, &args[..1], "arguments"),
            (
                [1, 1, 1],
                [128, 1, 1],
                0,
                &[Arg::U32(0), Arg::F32(0.0)],
                "arguments",
            ),
        ] {
            let got = allowed(&entry, grid, block, shared, args)
                .map_or_else(|error| error.to_string(), |()| String::new());
            assert!(
                got.contains(want) && got.is_empty() == want.is_empty(),
                "wanted {want:?}: {got}"
            );
        }
    }
}
