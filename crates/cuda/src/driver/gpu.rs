//! One GPU with the kernels of a pack: the launcher on hardware.

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::rc::Rc;

use cudarc::driver::sys;

use crate::arch::Arch;
use crate::driver::arena::Arena;
use crate::driver::context::{Context, Event, Memory, Stream, download, upload};
use crate::driver::graph::{self, Graph};
use crate::driver::module::{Kernel, Modules, allowed};
use crate::driver::probe::{DeviceInfo, Driver, VERSION_PTX, call};
use crate::error::CudaError;
use crate::launch::{Arg, DeviceBuffer, Launcher};
use crate::pack::file::Pack;

/// Which code of the pack runs. The caller says; there is no falling back from one to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Image {
    /// Machine code of the device's own architecture.
    Cubin,
    /// PTX of Volta's level, compiled by the driver.
    Ptx,
}

/// An opened GPU.
pub struct Gpu {
    info: DeviceInfo,
    arch: Arch,
    arena: Arena,
    recording: bool,
    modules: Rc<Modules>,
    memory: Rc<Memory>,
    stream: Rc<Stream>,
}

impl Gpu {
    /// Opens a device, allocates `arena_bytes` of its memory, and takes its kernels from `pack` as `image` says.
    ///
    /// # Errors
    /// The pack has no such code for the device, the memory is not there, or the driver's.
    pub fn open(
        driver: Driver,
        ordinal: usize,
        pack: Pack,
        image: Image,
        arena_bytes: usize,
    ) -> Result<Self, CudaError> {
        let info = driver.device(ordinal)?;
        let have: BTreeSet<Arch> = pack.manifest.blobs.iter().map(|entry| entry.arch).collect();
        let arch = choose(&info, driver, image, &have)?;
        let context = Context::new(&info)?;
        let memory = Memory::new(&context, arena_bytes)?;
        Ok(Self {
            arch,
            arena: Arena::new(memory.address, arena_bytes),
            recording: false,
            modules: Modules::new(&context, pack, arch),
            memory,
            stream: Stream::new(&context)?,
            info,
        })
    }

    /// The device.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// What the kernels are: the device's machine code, or PTX.
    pub fn arch(&self) -> Arch {
        self.arch
    }

    /// The pack.
    pub fn pack(&self) -> &Pack {
        self.modules.pack()
    }

    /// Loads a kernel before its first launch.
    ///
    /// # Errors
    /// The pack has none, or the driver refuses it.
    pub fn kernel(&mut self, symbol: &str) -> Result<Rc<Kernel>, CudaError> {
        if self.recording && !self.modules.has(symbol) {
            return Err(CudaError::Recording {
                what: "loading a kernel",
            });
        }
        self.modules.kernel(symbol)
    }

    /// From here on every allocation is an error, until `reset`.
    pub fn freeze(&mut self) {
        self.arena.freeze();
    }

    /// Waits for everything that was started.
    ///
    /// # Errors
    /// What a kernel ran into.
    pub fn wait(&self) -> Result<(), CudaError> {
        self.stream.wait()
    }

    /// Records what `work` launches, without running it.
    ///
    /// # Errors
    /// `work`'s own, then the driver's.
    pub fn record(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<(), CudaError>,
    ) -> Result<Graph, CudaError> {
        if self.recording {
            return Err(CudaError::Recording {
                what: "recording another",
            });
        }
        graph::begin(&self.stream)?;
        self.recording = true;
        let result = work(self);
        self.recording = false;
        if let Err(error) = result {
            graph::abandon(&self.stream);
            return Err(error);
        }
        graph::finish(&self.stream, &self.modules, &self.memory)
    }

    /// Milliseconds that the device takes for what `work` starts.
    ///
    /// # Errors
    /// `work`'s own, then the driver's.
    pub fn time(&mut self, work: impl FnOnce(&mut Self) -> Result<(), CudaError>) -> Result<f32, CudaError> {
        if self.recording {
            return Err(CudaError::Recording { what: "timing" });
        }
        let start = Event::record(&self.stream)?;
        work(self)?;
        Event::record(&self.stream)?.since(&start)
    }

    /// The stream, for libraries that launch on it.
    pub fn stream(&self) -> &Rc<Stream> {
        &self.stream
    }

    /// The address of a part of a buffer of this arena.
    fn own(&self, buffer: &DeviceBuffer, offset: usize, bytes: usize) -> Result<u64, CudaError> {
        let address = buffer.range(offset, bytes)?;
        if self.arena.holds(buffer) {
            return Ok(address);
        }
        Err(CudaError::Arena {
            bytes: buffer.bytes(),
            reason: format!("at {:#x}, which was not given out here", buffer.address()),
        })
    }
}

fn choose(info: &DeviceInfo, driver: Driver, image: Image, have: &BTreeSet<Arch>) -> Result<Arch, CudaError> {
    let names: Vec<&str> = have.iter().map(|arch| arch.name()).collect();
    let missing = |note| {
        Err(CudaError::NoImage {
            device: info.name.clone(),
            sm: info.sm,
            have: if names.is_empty() {
                "nothing".to_owned()
            } else {
                names.join(", ")
            },
            note,
        })
    };
    let ptx = Arch::Compute70;
    match image {
        Image::Cubin => match Arch::of_device(info.sm).filter(|arch| have.contains(arch)) {
            Some(arch) => Ok(arch),
            None if have.contains(&ptx) && info.sm >= ptx.sm() => {
                missing("; its PTX would run, slower and compiled by the driver at each start, if asked for")
            }
            None => missing(""),
        },
        Image::Ptx if !have.contains(&ptx) => missing(", and no PTX"),
        Image::Ptx if info.sm < ptx.sm() => missing("; Volta (sm_70) is the oldest that runs its PTX"),
        Image::Ptx if driver.version < VERSION_PTX => Err(CudaError::DriverVersion {
            version: driver.version,
            reason: "allowed for PTX: CUDA 12.9 or later (driver 575); machine code has no such need"
                .to_owned(),
        }),
        Image::Ptx => Ok(ptx),
    }
}

impl Launcher for Gpu {
    fn sm_count(&self) -> u32 {
        self.info.sm_count
    }

    fn alloc(&mut self, bytes: usize) -> Result<DeviceBuffer, CudaError> {
        self.arena.alloc(bytes)
    }

    fn reset(&mut self) -> Result<(), CudaError> {
        if self.recording {
            return Err(CudaError::Recording {
                what: "giving memory back",
            });
        }
        self.stream.wait()?;
        self.arena.reset();
        Ok(())
    }

    fn upload(&mut self, buffer: &DeviceBuffer, offset: usize, bytes: &[u8]) -> Result<(), CudaError> {
        if self.recording {
            return Err(CudaError::Recording { what: "an upload" });
        }
        let address = self.own(buffer, offset, bytes.len())?;
        upload(&self.stream, address, bytes)
    }

    fn download(&mut self, buffer: &DeviceBuffer, offset: usize, bytes: &mut [u8]) -> Result<(), CudaError> {
        if self.recording {
            return Err(CudaError::Recording { what: "a download" });
        }
        let address = self.own(buffer, offset, bytes.len())?;
        download(&self.stream, address, bytes)
    }

    fn launch(
        &mut self,
        symbol: &str,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        args: &[Arg],
    ) -> Result<(), CudaError> {
        let kernel = self.kernel(symbol)?;
        allowed(&kernel.entry, grid, block, shared_bytes, args)?;
        let mut values: Vec<[u8; 8]> = args.iter().map(|arg| arg.bytes().0).collect();
        let mut pointers: Vec<*mut c_void> =
            values.iter_mut().map(|value| value.as_mut_ptr().cast()).collect();
        // SAFETY: the function and the stream are alive; `allowed` has seen that the arguments have the sizes of the
        // kernel's parameters, and the driver copies them before it returns.
        let status = unsafe {
            sys::cuLaunchKernel(
                kernel.function,
                grid[0],
                grid[1],
                grid[2],
                block[0],
                block[1],
                block[2],
                shared_bytes,
                self.stream.handle,
                pointers.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        status.result().map_err(|error| CudaError::Launch {
            symbol: symbol.to_owned(),
            reason: call("cuLaunchKernel")(error).to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_is_chosen_and_never_swapped() {
        let all: &[Arch] = &Arch::ALL;
        let volta = &[Arch::Sm70, Arch::Compute70][..];
        for (sm, version, image, have, want) in [
            (70, 12_000, Image::Cubin, all, Ok(Arch::Sm70)),
            (90, 13_000, Image::Cubin, all, Ok(Arch::Sm90)),
            (90, 13_000, Image::Cubin, volta, Err("if asked for")),
            (90, 13_000, Image::Ptx, volta, Ok(Arch::Compute70)),
            (120, 13_000, Image::Cubin, all, Err("sm_120")),
            (120, 13_000, Image::Ptx, all, Ok(Arch::Compute70)),
            (61, 12_090, Image::Cubin, all, Err("sm_61")),
            (61, 12_090, Image::Ptx, all, Err("oldest")),
            (70, 12_080, Image::Ptx, all, Err("CUDA 12.9")),
            (70, 12_090, Image::Ptx, &[Arch::Sm70], Err("no PTX")),
            (70, 12_090, Image::Cubin, &[], Err("nothing")),
        ] {
            let info = DeviceInfo {
                ordinal: 0,
                name: "card".to_owned(),
                sm,
                sm_count: 80,
                memory_bytes: 1 << 34,
            };
            let got = choose(&info, Driver { version }, image, &have.iter().copied().collect());
            match (got, want) {
                (Ok(got), Ok(want)) => assert_eq!(got, want, "sm_{sm} {image:?}"),
                (Err(got), Err(want)) => assert!(got.to_string().contains(want), "{got}"),
                (got, want) => panic!("sm_{sm} {image:?}: {got:?}, wanted {want:?}"),
            }
        }
    }
}
