//! A GPU as an executor: the launch layer with cuBLAS beside it.

use std::path::Path;

use galvani_cuda::arch::Arch;
use galvani_cuda::driver::blas::{self, Blas};
use galvani_cuda::driver::{Driver, Gpu, Image};
use galvani_cuda::ops::linear::Product;
use galvani_cuda::ops::linear::divide::Device;
use galvani_cuda::pack::file::Pack;
use galvani_cuda::{Arg, CudaError, DeviceBuffer, Launcher};

use super::Executor;

const BLAS_BYTES: usize = 32 << 20;

/// A GPU. cuBLAS is loaded when a product is first asked for; its memory is the arena's first.
pub struct GpuExecutor {
    /// The device with its kernels.
    pub gpu: Gpu,
    workspace: DeviceBuffer,
    blas: Option<Blas>,
}

impl GpuExecutor {
    /// Opens the first GPU.
    ///
    /// # Errors
    /// There is none, or the pack has no such code for it.
    pub fn open(pack: &Path, image: Image, arena_bytes: usize) -> Result<Self, CudaError> {
        let mut gpu = Gpu::open(Driver::load()?, 0, Pack::read(pack)?, image, arena_bytes)?;
        Ok(Self {
            workspace: gpu.alloc(BLAS_BYTES)?,
            gpu,
            blas: None,
        })
    }

    /// Whether Volta's code runs, machine code or PTX.
    pub fn volta(&self) -> bool {
        matches!(self.gpu.arch(), Arch::Sm70 | Arch::Compute70)
    }

    /// What plans divide by, where the memory's speed was not measured: V100's for each multiprocessor.
    pub fn device(&self) -> Device {
        let sm_count = self.gpu.info().sm_count;
        Device {
            sm_count,
            read_gb_s: (Device::V100.read_gb_s * sm_count).div_ceil(Device::V100.sm_count),
            volta: self.volta(),
        }
    }
}

impl Launcher for GpuExecutor {
    fn sm_count(&self) -> u32 {
        self.gpu.sm_count()
    }

    fn alloc(&mut self, bytes: usize) -> Result<DeviceBuffer, CudaError> {
        self.gpu.alloc(bytes)
    }

    fn reset(&mut self) -> Result<(), CudaError> {
        self.gpu.reset()?;
        let again = self.gpu.alloc(BLAS_BYTES)?;
        assert_eq!(
            again, self.workspace,
            "an arena gives its first allocation the same place"
        );
        Ok(())
    }

    fn upload(&mut self, buffer: &DeviceBuffer, offset: usize, bytes: &[u8]) -> Result<(), CudaError> {
        self.gpu.upload(buffer, offset, bytes)
    }

    fn download(&mut self, buffer: &DeviceBuffer, offset: usize, bytes: &mut [u8]) -> Result<(), CudaError> {
        self.gpu.download(buffer, offset, bytes)
    }

    fn launch(
        &mut self,
        symbol: &str,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        args: &[Arg],
    ) -> Result<(), CudaError> {
        self.gpu.launch(symbol, grid, block, shared_bytes, args)
    }
}

impl Executor for GpuExecutor {
    fn product(&mut self, product: &Product) -> Result<(), CudaError> {
        let blas = match self.blas.take() {
            Some(blas) => blas,
            None => Blas::load(&self.gpu, &self.workspace)?,
        };
        let result = blas.product(&blas::Product {
            m: product.m,
            n: product.n,
            k: product.k,
            activations: product.x,
            activation_stride: product.x_stride,
            weights: product.rows,
            weight_stride: product.row_stride,
            output: product.product,
            store: blas::Output::F32,
        });
        self.blas = Some(blas);
        result
    }

    fn checks(&self) -> bool {
        false
    }
}
