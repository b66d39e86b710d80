//! Which kernels run for a product, on how many blocks, in which workspace: a pure function of shape and device.
//!
//! | tokens | route |
//! |---|---|
//! | 1 to 32 | skinny: one weight pass for 8, 16 or 32 tokens |
//! | 33 to 512 | tiled: 64 tokens a block, one weight pass from memory |
//! | above | weights as f16 rows in a bounded scratch, a library's product, then the factors |

use std::fmt::Write;

use crate::error::CudaError;
use crate::model::{self, LoopRow};
use crate::ops::linear::divide::{self, Device, PARTS_MAX, Work};
use crate::ops::linear::formats::LinearFormat;
use crate::ops::linear::rows::{self, SHAPES, SkinnyShape};

/// Tokens of the skinny route at most.
pub const SKINNY_TOKENS_MAX: u32 = 32;
/// Tokens of the tiled route at most.
pub const TILED_TOKENS_MAX: u32 = 512;
/// Tokens of a product at most.
pub const TOKENS_MAX: u32 = 1 << 16;
/// Columns at most.
pub const COLUMNS_MAX: u32 = 1 << 21;
/// Length of a row at most.
pub const K_MAX: u32 = 1 << 19;
/// Each of the two scratches of the library route, weights and sums, is at most so large (unless 32 columns need more).
pub const SCRATCH_BYTES: usize = 64 << 20;

/// Tokens and tiles of columns of a tiled block.
const TILED_TOKENS: u32 = 64;
const TILED_TILES: u32 = 4;
/// Sums of a tiled block.
const TILED_SUMS_BYTES: u32 = 64 * 128 * 4;
/// Time of 64 k of a full device in the tiled kernel, in ns: half of V100's tensor rate; and of one block.
const TILED_ROUND_NS: f64 = 4000.0;
const TILED_LATENCY_NS: f64 = 1500.0;

/// The type of the results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutType {
    /// Half precision.
    F16,
    /// Single precision.
    F32,
}

impl OutType {
    /// Bytes of a number.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F16 => 2,
            Self::F32 => 4,
        }
    }
}

/// A product, whatever the number of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Linear {
    /// The weights' format.
    pub format: LinearFormat,
    /// Columns: rows of the weight matrix.
    pub n: u32,
    /// Numbers a row.
    pub k: u32,
    /// The results' type.
    pub out: OutType,
    /// Whether a bias [n] (f16) is added.
    pub bias: bool,
    /// Whether a residual [m, n] (f32, of the results' stride) is added.
    pub residual: bool,
}

/// How the skinny kernel runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Skinny {
    /// Columns and tokens of a block.
    pub shape: SkinnyShape,
    /// Warps of a block, which share the spans of k.
    pub warps: u32,
    /// Parts of k.
    pub parts: u32,
}

/// How a product runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// `linear_skinny.cu`
    Skinny(Skinny),
    /// `linear_tiled.cu`
    Tiled {
        /// Parts of k.
        parts: u32,
    },
    /// `linear_dequant.cu`, a library's product, `linear_finish.cu`, for some columns at a time.
    Library {
        /// Columns at a time, a multiple of 32.
        columns: u32,
    },
}

/// Memory that a plan needs beyond its operands. One workspace may serve many plans, one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Workspace {
    /// Sums of the parts of k, or of the library's product.
    pub sums_bytes: usize,
    /// One word a meeting. Zero before the first launch; launches leave them zero.
    pub counters_bytes: usize,
    /// Weights as f16 rows.
    pub rows_bytes: usize,
}

/// A plan: see `steps` for what it makes of operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearPlan {
    /// The product.
    pub linear: Linear,
    /// Tokens.
    pub m: u32,
    /// How it runs.
    pub route: Route,
}

impl Linear {
    /// Results in f16, nothing added.
    pub const fn plain(format: LinearFormat, n: u32, k: u32) -> Self {
        Self {
            format,
            n,
            k,
            out: OutType::F16,
            bias: false,
            residual: false,
        }
    }

    /// Plans `m` tokens.
    ///
    /// # Errors
    /// A size outside its limits.
    pub fn plan(&self, m: u32, device: Device) -> Result<LinearPlan, CudaError> {
        self.check(m, device)?;
        let route = if m <= SKINNY_TOKENS_MAX {
            self.skinny(m, device)
        } else if m <= TILED_TOKENS_MAX {
            self.tiled(m, device)
        } else {
            self.library(m)
        };
        Ok(LinearPlan {
            linear: *self,
            m,
            route,
        })
    }

    /// Plans `m` tokens with so many parts of k.
    ///
    /// # Errors
    /// Parts that do not each have a piece, or a route without parts.
    pub fn plan_with_parts(&self, m: u32, device: Device, forced: u32) -> Result<LinearPlan, CudaError> {
        let mut plan = self.plan(m, device)?;
        let (parts, pieces) = match &mut plan.route {
            Route::Skinny(skinny) => (
                &mut skinny.parts,
                self.k.div_ceil(skinny.shape.span(device.volta)),
            ),
            Route::Tiled { parts } => (parts, self.k.div_ceil(rows::tiled_span(device.volta))),
            Route::Library { .. } => return Err(shape("parts of k", forced, "none on the library's route")),
        };
        if forced > PARTS_MAX || !divide::valid(pieces, forced) {
            let allowed = format!("1 to {PARTS_MAX}, each with one of the {pieces} pieces");
            return Err(shape("parts of k", forced, allowed));
        }
        *parts = forced;
        Ok(plan)
    }

    /// Plans `m` tokens on the library's route, whatever their number.
    ///
    /// # Errors
    /// A size outside its limits.
    pub fn plan_library(&self, m: u32, device: Device) -> Result<LinearPlan, CudaError> {
        self.check(m, device)?;
        Ok(LinearPlan {
            linear: *self,
            m,
            route: self.library(m),
        })
    }

    /// Tiles of 32 columns.
    pub const fn tiles(&self) -> u32 {
        self.n.div_ceil(32)
    }

    /// Pieces of k.
    pub const fn pieces(&self) -> u32 {
        self.k.div_ceil(self.format.piece)
    }

    fn check(&self, m: u32, device: Device) -> Result<(), CudaError> {
        for (what, value, most) in [
            ("tokens", m, TOKENS_MAX),
            ("columns", self.n, COLUMNS_MAX),
            ("k", self.k, K_MAX),
            ("multiprocessors", device.sm_count, 4096),
            ("read GB/s", device.read_gb_s, 1 << 20),
        ] {
            if !(1..=most).contains(&value) {
                return Err(shape(what, value, format!("1 to {most}")));
            }
        }
        if !self.k.is_multiple_of(self.format.k_multiple) {
            let allowed = format!("multiples of {} for {}", self.format.k_multiple, self.format.name);
            return Err(shape("k", self.k, allowed));
        }
        Ok(())
    }

    /// Blocks of the skinny kernel, along the columns.
    pub const fn blocks(&self, shape: SkinnyShape) -> u32 {
        self.tiles() * (32 / shape.columns)
    }

    /// The skinny kernel's launch, as the model of times sees it.
    pub fn skinny_work(&self, m: u32, skinny: Skinny, device: Device) -> model::Work {
        let kernel = model::skinny_loop(device.volta, self.format.name, skinny.shape);
        self.skinny_work_of(m, skinny, device.volta, &kernel)
    }

    /// The same with a loop that the caller knows.
    pub fn skinny_work_of(&self, m: u32, skinny: Skinny, volta: bool, kernel: &LoopRow) -> model::Work {
        let Skinny { shape, warps, parts } = skinny;
        let (blocks, span) = (self.blocks(shape), shape.span(volta));
        let pieces = self.k.div_ceil(span);
        let bytes = self.format.tile_bytes(self.k) as f64 * f64::from(self.tiles());
        model::Work {
            blocks,
            parts,
            warps,
            pieces,
            piece: span,
            piece_bytes: bytes / f64::from(blocks) / f64::from(pieces),
            tokens: m.min(8 * shape.token_tiles),
            sums_bytes: shape.sums_bytes(),
            registers: kernel.registers,
            shared_bytes: shape.shared_bytes(warps) + kernel.shared_static,
            pass: kernel.pass,
        }
    }

    /// Warps of a block at most: those of its row, and no more than there are spans for.
    fn warps_max(&self, shape: SkinnyShape, device: Device) -> u32 {
        let (threads, _) = rows::skinny_bounds(&self.format, shape);
        let spans = self.k.div_ceil(shape.span(device.volta));
        (threads / 32).min(spans.next_power_of_two())
    }

    /// Whether a block of so many warps steps over its spans of k, `spans` of `span` k, as the kernel does it: by whole stripes of the format and
    /// pairs of pieces (which lie alike), or not at all, as there are no more spans than warps.
    fn steps_by_stripes(&self, warps: u32, spans: u32, span: u32) -> bool {
        spans <= warps || (warps * span).is_multiple_of(self.format.packed.row().stripe.max(128) as u32)
    }

    /// All ways to run the skinny kernel: each shape of the device that has room for the tokens and no token tile too many, each
    /// number of warps that a block may have, each number of parts that all have something to do.
    pub fn skinny_ways(&self, m: u32, device: Device) -> Vec<Skinny> {
        let fits = SHAPES.iter().filter(|shape| m <= 8 * shape.token_tiles);
        let token_tiles = fits.map(|shape| shape.token_tiles).min();
        let mut ways = Vec::new();
        for shape in SHAPES
            .iter()
            .filter(|shape| Some(shape.token_tiles) == token_tiles)
        {
            let pieces = self.k.div_ceil(shape.span(device.volta));
            let most = self.warps_max(*shape, device);
            let parts = (1..=PARTS_MAX.min(pieces)).filter(|parts| divide::valid(pieces, *parts));
            for parts in parts {
                let warps = std::iter::successors(Some(most), |warps| Some(warps / 2))
                    .take_while(|warps| *warps > 0)
                    .filter(|warps| {
                        let span = shape.span(device.volta);
                        self.steps_by_stripes(*warps, pieces.div_ceil(parts), span)
                    });
                ways.extend(warps.map(|warps| Skinny {
                    shape: *shape,
                    warps,
                    parts,
                }));
            }
        }
        ways
    }

    /// The fastest by the model. Blocks of less than four warps are left out where a row allows for more than four: they took longer than it
    /// says.
    fn skinny(&self, m: u32, device: Device) -> Route {
        let rates = device.rates();
        let all = self.skinny_ways(m, device).into_iter();
        let large = all.filter(|way| way.warps >= 4 || self.warps_max(way.shape, device) <= 4);
        let timed = large.map(|way| {
            let work = self.skinny_work(m, way, device);
            (way, model::predict(&rates, &work, &model::FIT).us)
        });
        let best = timed.min_by(|a, b| a.1.total_cmp(&b.1));
        Route::Skinny(best.expect("one part is always valid").0)
    }

    /// Blocks of one part of the tiled kernel: along the tokens, along the columns.
    pub const fn tiled_blocks(&self, m: u32) -> [u32; 2] {
        [m.div_ceil(TILED_TOKENS), self.tiles().div_ceil(TILED_TILES)]
    }

    /// The work of the tiled kernel.
    pub fn tiled_work(&self, m: u32, device: Device) -> Work {
        let [along, across] = self.tiled_blocks(m);
        let blocks = along * across;
        let span = rows::tiled_span(device.volta);
        let part_bytes = f64::from(blocks) * f64::from(TILED_SUMS_BYTES);
        Work {
            blocks,
            resident: device.sm_count * rows::tiled_blocks(&self.format),
            together: device.sm_count,
            pieces: self.k.div_ceil(span),
            pieces_round: 1,
            round_ns: TILED_ROUND_NS * f64::from(span) / 64.0,
            latency_ns: TILED_LATENCY_NS * f64::from(span) / 64.0,
            part_ns: 2.0 * part_bytes / f64::from(device.read_gb_s),
        }
    }

    fn tiled(&self, m: u32, device: Device) -> Route {
        let parts = divide::choose(&self.tiled_work(m, device)).parts;
        Route::Tiled { parts }
    }

    fn library(&self, m: u32) -> Route {
        let column_bytes = (self.row_stride() as usize * 2).max(m as usize * 4);
        let columns = (SCRATCH_BYTES / column_bytes / 32 * 32).max(32);
        Route::Library {
            columns: columns.min(self.tiles() as usize * 32) as u32,
        }
    }

    /// Halves of a row in the library route's scratch: whole pieces.
    pub const fn row_stride(&self) -> u32 {
        self.pieces() * self.format.piece
    }
}

impl LinearPlan {
    /// How the skinny kernel runs; nothing on the other routes.
    pub const fn skinny(&self) -> Option<Skinny> {
        match self.route {
            Route::Skinny(skinny) => Some(skinny),
            Route::Tiled { .. } | Route::Library { .. } => None,
        }
    }

    /// The memory that it needs.
    pub fn workspace(&self) -> Workspace {
        match self.route {
            Route::Skinny(Skinny { parts: 1, .. }) | Route::Tiled { parts: 1 } => Workspace::default(),
            Route::Skinny(Skinny { shape, parts, .. }) => {
                let blocks = self.linear.blocks(shape) as usize;
                Workspace {
                    sums_bytes: blocks * (parts * shape.sums_bytes()) as usize,
                    counters_bytes: blocks * 4,
                    rows_bytes: 0,
                }
            }
            Route::Tiled { parts } => {
                let [along, across] = self.linear.tiled_blocks(self.m);
                let places = along as usize * across as usize;
                Workspace {
                    sums_bytes: places * (parts * TILED_SUMS_BYTES) as usize,
                    counters_bytes: places * 4,
                    rows_bytes: 0,
                }
            }
            Route::Library { columns } => Workspace {
                sums_bytes: self.m as usize * columns as usize * 4,
                counters_bytes: 0,
                rows_bytes: columns as usize * self.linear.row_stride() as usize * 2,
            },
        }
    }

    /// One line: route, blocks, waves.
    pub fn describe(&self, device: Device) -> String {
        match self.route {
            Route::Skinny(skinny) => {
                let work = self.linear.skinny_work(self.m, skinny, device);
                let time = model::predict(&device.rates(), &work, &model::FIT);
                format!(
                    "skinny mt{}, {} warps, {} blocks of {} columns x {} parts, {:.2} waves, {:?} binds",
                    skinny.shape.token_tiles,
                    skinny.warps,
                    work.blocks,
                    skinny.shape.columns,
                    skinny.parts,
                    time.waves,
                    time.bound
                )
            }
            Route::Tiled { parts } => {
                let work = self.linear.tiled_work(self.m, device);
                let choice = divide::estimate(&work, parts);
                format!(
                    "tiled, {} blocks x {parts} parts, {:.2} waves of {} rounds",
                    work.blocks, choice.waves, choice.rounds
                )
            }
            Route::Library { columns } => {
                format!("library, {columns} of {} columns at a time", self.linear.n)
            }
        }
    }
}

/// The plans of some shapes as a Markdown table.
///
/// # Errors
/// As for `Linear::plan`.
pub fn table(
    format: LinearFormat,
    shapes: &[(u32, u32)],
    tokens: &[u32],
    device: Device,
) -> Result<String, CudaError> {
    let mut text = String::from("| N x K | M | plan | workspace KiB |\n|---|---|---|---|\n");
    for &(n, k) in shapes {
        for &m in tokens {
            let plan = Linear::plain(format, n, k).plan(m, device)?;
            let memory = plan.workspace();
            let bytes = memory.sums_bytes + memory.counters_bytes + memory.rows_bytes;
            let line = plan.describe(device);
            writeln!(text, "| {n} x {k} | {m} | {line} | {} |", bytes.div_ceil(1024)).expect("to memory");
        }
    }
    Ok(text)
}

/// The error of a size.
pub(crate) fn shape(what: &'static str, value: impl Into<u64>, allowed: impl Into<String>) -> CudaError {
    CudaError::Shape {
        what,
        value: usize::try_from(value.into()).unwrap_or(usize::MAX),
        allowed: allowed.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::PackedFormat;

    fn linear(n: u32, k: u32) -> Linear {
        Linear::plain(LinearFormat::of(PackedFormat::Nvfp4.row()), n, k)
    }

    #[test]
    fn bands_begin_and_end_where_they_say() {
        let class = |m| match linear(1000, 512).plan(m, Device::V100).unwrap().route {
            Route::Skinny(skinny) => skinny.shape.token_tiles,
            Route::Tiled { .. } => 100 + m.div_ceil(TILED_TOKENS),
            Route::Library { .. } => 1000,
        };
        let cases = [
            (1, 1),
            (8, 1),
            (9, 2),
            (16, 2),
            (17, 4),
            (32, 4),
            (33, 101),
            (64, 101),
            (65, 102),
            (512, 108),
            (513, 1000),
        ];
        for (m, want) in cases {
            assert_eq!(class(m), want, "{m} tokens");
        }
    }

    #[test]
    fn what_was_fastest_on_an_h200_is_chosen() {
        // The fastest or within a tenth of it: whole tiles of few warps, parts of k where there are few tiles, half tiles where there are
        // fewer, or where they share the blocks out better.
        for (n, k, columns, warps, parts) in [
            (17408, 5120, 32, 4..=8, 1..=1),
            (5120, 17408, 32, 4..=16, 1..=4),
            (2048, 5120, 16, 16..=16, 1..=1),
            (14336, 4096, 16, 4..=4, 1..=1),
        ] {
            let plan = linear(n, k).plan(1, Device::H200).unwrap();
            let skinny = plan.skinny().expect("one token");
            assert!(
                skinny.shape.columns == columns
                    && warps.contains(&skinny.warps)
                    && parts.contains(&skinny.parts),
                "{n} x {k}: {}",
                plan.describe(Device::H200)
            );
        }
    }

    #[test]
    fn sizes_outside_the_limits_are_named() {
        let none = Device {
            sm_count: 0,
            ..Device::V100
        };
        for (n, k, m, device, want) in [
            (0, 64, 1, Device::V100, "columns is 0"),
            (64, 0, 1, Device::V100, "k is 0"),
            (64, 24, 1, Device::V100, "k is 24"),
            (64, 64, 0, Device::V100, "tokens is 0"),
            (64, 64, TOKENS_MAX + 1, Device::V100, "tokens is 65537"),
            (u32::MAX, 64, 1, Device::V100, "columns is"),
            (64, u32::MAX, 1, Device::V100, "k is"),
            (64, 64, 1, none, "multiprocessors is 0"),
        ] {
            let error = linear(n, k).plan(m, device).unwrap_err().to_string();
            assert!(error.contains(want), "wanted {want}: {error}");
        }
        for (m, parts) in [(1, 0), (1, 6), (1, 17), (64, 9), (1000, 1)] {
            let error = linear(64, 640)
                .plan_with_parts(m, Device::V100, parts)
                .unwrap_err();
            assert!(error.to_string().contains("parts of k"), "{m} {parts}: {error}");
        }
    }

    #[test]
    fn the_library_route_keeps_its_bounds() {
        for (n, k, m) in [
            (17408, 5120, 4096),
            (5120, 17408, 65536),
            (31, 64, 513),
            (151_936, 4096, 2048),
        ] {
            let plan = linear(n, k).plan_library(m, Device::V100).unwrap();
            let Route::Library { columns } = plan.route else {
                panic!("{plan:?}")
            };
            assert!(columns >= 32 && columns.is_multiple_of(32) && columns <= n.next_multiple_of(32));
            let memory = plan.workspace();
            assert!(
                memory.sums_bytes <= SCRATCH_BYTES && memory.rows_bytes <= SCRATCH_BYTES,
                "{memory:?}"
            );
        }
    }

    #[test]
    fn the_table_has_a_line_a_plan() {
        let text = table(
            linear(1, 16).format,
            &[(5120, 17408), (2048, 5120)],
            &[1, 16, 64, 600],
            Device::V100,
        )
        .unwrap();
        assert_eq!(text.lines().count(), 2 + 8);
        assert!(
            text.contains("skinny mt2") && text.contains("tiled") && text.contains("library"),
            "{text}"
        );
    }
}
