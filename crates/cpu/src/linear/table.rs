//! Which compiled function serves which instruction set and format.

use galvani_graph::{Activation, Format};

use super::act::CHUNK;
use super::epilogue::{self, PutFn};
use super::tile::{STREAMS, TileOut};
use super::{float, tile};
use crate::dot::{BlockFormat, for_block_format};
use crate::isa::Isa;
use crate::pack::TILE_ROWS;
use crate::quantise::ActTile;
use crate::simd::Simd;
use crate::simd::lanes::Lanes;
use crate::simd::math;

/// (tile, units, rows, how many, results)
pub(super) type RowsFn = unsafe fn(*const u8, usize, &ActTile, usize, *mut TileOut);
/// (tiles, units, rows, how many, results)
pub(super) type StreamsFn = unsafe fn(&[*const u8; STREAMS], usize, &ActTile, usize, *mut TileOut);
/// (tile, k, rows, how many, results)
pub(super) type FloatFn = unsafe fn(*const u8, usize, &[*const f32; CHUNK], usize, *mut TileOut);

/// Splits `count` rows over kernels of fixed height. Rows of a chunk lie side by side up to its interleave's height, so
/// a kernel may compute rows beyond `count` (their results are not used), but none beyond that height.
///
/// # Safety
/// As [`tile::rows`].
#[inline(always)]
unsafe fn dispatch<S: Simd, F: BlockFormat, const WIDEST: usize>(
    at: *const u8,
    units: usize,
    act: &ActTile,
    count: usize,
    out: *mut TileOut,
) {
    let out: *mut [f32; TILE_ROWS] = out.cast();
    let mut first = 0;
    while first < count {
        // SAFETY: the caller's contract; row `first` lies `first` elements on.
        unsafe {
            let act = ActTile {
                codes: act.codes.add(crate::pack::BLOCK * first),
                planes: act.planes.add(first),
                ..*act
            };
            let out: *mut [f32; TILE_ROWS] = out.add(first);
            match (count - first).min(WIDEST) {
                1 => tile::rows::<S, F, 1>(at, units, &act, out),
                2 if WIDEST >= 8 => tile::rows::<S, F, 2>(at, units, &act, out),
                2..=4 => tile::rows::<S, F, 4>(at, units, &act, out),
                5..=8 if WIDEST >= 8 => tile::rows::<S, F, 8>(at, units, &act, out),
                _ => unreachable!("the widest kernel is 4 or 8 rows"),
            }
        }
        first += WIDEST;
    }
}

/// Up to [`stream_rows`] rows against tiles side by side.
///
/// # Safety
/// As [`tile::rows_of_streams`]; as in [`dispatch`], rows beyond `count` may be computed.
#[inline(always)]
unsafe fn dispatch_streams<S: Simd, F: BlockFormat>(
    tiles: &[*const u8; STREAMS],
    units: usize,
    act: &ActTile,
    count: usize,
    out: *mut TileOut,
) {
    // SAFETY: the caller's contract.
    unsafe {
        match count {
            1 => tile::rows_of_streams::<S, F, 1>(tiles, units, act, out),
            _ => tile::rows_of_streams::<S, F, 2>(tiles, units, act, out),
        }
    }
}

/// # Safety
/// As [`float::rows`].
#[inline(always)]
unsafe fn dispatch_float<S: Simd, const E: u8, const WIDEST: usize>(
    at: *const u8,
    k: usize,
    x: &[*const f32; CHUNK],
    count: usize,
    out: *mut TileOut,
) {
    let out: *mut [f32; TILE_ROWS] = out.cast();
    let mut first = 0;
    while first < count {
        // SAFETY: the caller's contract; pointers beyond `count` repeat the last row.
        unsafe {
            let x = x.as_ptr().add(first);
            let out: *mut [f32; TILE_ROWS] = out.add(first);
            match (count - first).min(WIDEST) {
                1 => float::rows::<S, E, 1>(at, k, x, out),
                2..=4 => float::rows::<S, E, 4>(at, k, x, out),
                5..=8 if WIDEST >= 16 => float::rows::<S, E, 8>(at, k, x, out),
                _ if WIDEST >= 16 => float::rows::<S, E, 16>(at, k, x, out),
                _ => unreachable!("the widest kernel is 4 or 16 rows"),
            }
        }
        first += WIDEST;
    }
}

/// # Safety
/// The contract of [`Simd`].
#[inline(always)]
unsafe fn gate_rows<S: Simd>(activation: Activation, gate: *mut TileOut, up: *const TileOut, count: usize) {
    let (gate, up) = (gate.cast::<f32>(), up.cast::<f32>());
    for row in 0..count {
        // SAFETY: both are rows of 16 numbers.
        unsafe {
            let (gate, up) = (gate.add(TILE_ROWS * row), up.add(TILE_ROWS * row));
            let g = math::activate::<S>(activation, S::load_f(gate));
            S::store_f(gate, S::mul(g, S::load_f(up)));
        }
    }
}

/// One module an instruction set: the same generic code compiled for it. The widest kernels are those whose sums, codes
/// and products still fit in the registers: eight rows of a packed format with AVX-512 (sixteen run at half the speed).
macro_rules! compiled {
    ($module:ident, $simd:ty, $widest:literal, $widest_float:literal $(, $feature:literal)?) => {
        mod $module {
            use super::*;

            $(#[target_feature(enable = $feature)])?
            pub unsafe fn rows<F: BlockFormat>(
                at: *const u8, units: usize, act: &ActTile, count: usize, out: *mut TileOut,
            ) {
                // SAFETY: the caller's contract.
                unsafe { dispatch::<$simd, F, $widest>(at, units, act, count, out) }
            }

            $(#[target_feature(enable = $feature)])?
            pub unsafe fn streams<F: BlockFormat>(
                tiles: &[*const u8; STREAMS], units: usize, act: &ActTile, count: usize, out: *mut TileOut,
            ) {
                // SAFETY: the caller's contract.
                unsafe { dispatch_streams::<$simd, F>(tiles, units, act, count, out) }
            }

            $(#[target_feature(enable = $feature)])?
            pub unsafe fn floats<const E: u8>(
                at: *const u8, k: usize, x: &[*const f32; CHUNK], count: usize, out: *mut TileOut,
            ) {
                // SAFETY: the caller's contract.
                unsafe { dispatch_float::<$simd, E, $widest_float>(at, k, x, count, out) }
            }

            $(#[target_feature(enable = $feature)])?
            pub unsafe fn gate(activation: Activation, gate: *mut TileOut, up: *const TileOut, count: usize) {
                // SAFETY: the caller's contract.
                unsafe { gate_rows::<$simd>(activation, gate, up, count) }
            }

            $(#[target_feature(enable = $feature)])?
            pub unsafe fn put(
                value: *const f32, bias: *const f32, residual: *const f32, scale: f32, out: *mut f32,
            ) {
                // SAFETY: the caller's contract.
                unsafe { epilogue::put::<$simd>(value, bias, residual, scale, out) }
            }
        }
    };
}

compiled!(portable, Lanes, 4, 4);
#[cfg(target_arch = "x86_64")]
compiled!(avx2, crate::simd::avx2::Avx2, 4, 4, "avx2,fma,f16c");
#[cfg(target_arch = "x86_64")]
compiled!(
    avx512,
    crate::simd::avx512::Avx512,
    8,
    16,
    "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c"
);
#[cfg(target_arch = "aarch64")]
compiled!(neon, crate::simd::neon::Neon, 4, 4);
#[cfg(target_arch = "aarch64")]
compiled!(neon_dot, crate::simd::neon::NeonDot, 4, 4, "dotprod");

/// Calls `$with!(module)` with the module compiled for `$isa`.
macro_rules! for_isa {
    ($isa:expr, $with:ident) => {
        match $isa {
            #[cfg(target_arch = "x86_64")]
            Isa::AmxInt8 | Isa::Avx512Vnni => $with!(avx512),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => $with!(avx2),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::AmxInt8 | Isa::Avx512Vnni | Isa::Avx2 => unreachable!("not on this architecture"),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDot => $with!(neon_dot),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => $with!(neon),
            #[cfg(not(target_arch = "aarch64"))]
            Isa::NeonDot | Isa::Neon => unreachable!("not on this architecture"),
            Isa::Portable => $with!(portable),
        }
    };
}

/// The kernels for a packed format: of one tile, and of several side by side.
pub(super) fn packed_fns(isa: Isa, format: Format) -> (RowsFn, StreamsFn) {
    macro_rules! of_isa {
        ($m:ident) => {{
            macro_rules! of_format {
                ($f:ty) => {
                    ($m::rows::<$f> as RowsFn, $m::streams::<$f> as StreamsFn)
                };
            }
            for_block_format!(format, of_format, unreachable!("only packed formats have units"))
        }};
    }
    for_isa!(isa, of_isa)
}

/// Rows up to which tiles are taken side by side. (With four and eight rows the arithmetic hides the way to memory, and sums that
/// leave the registers cost a tenth and a quarter.)
pub(super) fn stream_rows(isa: Isa) -> usize {
    match isa {
        Isa::AmxInt8 | Isa::Avx512Vnni => 2,
        Isa::Avx2 | Isa::NeonDot | Isa::Neon | Isa::Portable => 1,
    }
}

/// The kernels for many rows of a packed format, where the set has tiles.
#[cfg(target_arch = "x86_64")]
pub(super) fn amx(isa: Isa, format: Format) -> Option<super::amx::Kernel> {
    macro_rules! of_format {
        ($f:ty) => {
            Some(super::amx::Kernel::of::<$f>())
        };
    }
    match isa {
        Isa::AmxInt8 => for_block_format!(format, of_format, None),
        Isa::Avx512Vnni | Isa::Avx2 | Isa::NeonDot | Isa::Neon | Isa::Portable => None,
    }
}

/// The kernel for float tiles.
pub(super) fn float_fn(isa: Isa, format: Format) -> FloatFn {
    macro_rules! of_isa {
        ($m:ident) => {
            match float::encoding(format) {
                float::F16 => $m::floats::<{ float::F16 }>,
                float::BF16 => $m::floats::<{ float::BF16 }>,
                _ => $m::floats::<{ float::F32 }>,
            }
        };
    }
    for_isa!(isa, of_isa)
}

/// The function that writes results.
pub(super) fn put_fn(isa: Isa) -> PutFn {
    macro_rules! of_isa {
        ($m:ident) => {
            $m::put
        };
    }
    for_isa!(isa, of_isa)
}

/// `gate = act(gate) * up` for `count` rows.
///
/// # Safety
/// The machine has `isa`.
pub(super) unsafe fn gate(
    isa: Isa,
    activation: Activation,
    gate: *mut TileOut,
    up: *const TileOut,
    count: usize,
) {
    macro_rules! of_isa {
        ($m:ident) => {
            // SAFETY: the caller's contract.
            unsafe { $m::gate(activation, gate, up, count) }
        };
    }
    for_isa!(isa, of_isa);
}
