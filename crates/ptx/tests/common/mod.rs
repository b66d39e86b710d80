//! A small bench for kernels: memory, arguments, one launch.
#![allow(dead_code)]

pub mod snippet;

use galvani_ptx::{Approximate, Arg, Counters, Fault, Launch, Memory, MmaOrder, Module, Options, run};

pub const OPTIONS: Options = Options {
    mma: MmaOrder::EmulatedF32,
    approximate: Approximate::Refuse,
    threads: 1,
    steps_max: 10_000_000,
    races: true,
};

pub struct Bench {
    pub module: Module,
    pub memory: Memory,
    pub options: Options,
    pub shared_bytes: u32,
}

pub fn fixture(name: &str) -> String {
    let path = format!("{}/tests/fixtures/{name}.ptx", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

impl Bench {
    pub fn new(text: &str) -> Self {
        let module = Module::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        Self {
            module,
            memory: Memory::new(1 << 28),
            options: OPTIONS,
            shared_bytes: 0,
        }
    }

    pub fn fixture(name: &str) -> Self {
        Self::new(&fixture(name))
    }

    pub fn empty(&mut self, name: &str, bytes: usize) -> u64 {
        self.memory.alloc(name, bytes).expect("memory is large enough")
    }

    pub fn bytes(&mut self, name: &str, bytes: &[u8]) -> u64 {
        let address = self.empty(name, bytes.len());
        self.memory.write(address, bytes).expect("it was just made");
        address
    }

    pub fn words(&mut self, name: &str, words: &[u32]) -> u64 {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.bytes(name, &bytes)
    }

    pub fn floats(&mut self, name: &str, values: &[f32]) -> u64 {
        let words: Vec<u32> = values.iter().map(|value| value.to_bits()).collect();
        self.words(name, &words)
    }

    #[expect(clippy::result_large_err, reason = "as `run` gives it")]
    pub fn launch(
        &mut self,
        kernel: &str,
        grid: [u32; 3],
        block: [u32; 3],
        args: &[Arg<'_>],
    ) -> Result<Counters, Fault> {
        let params = self
            .module
            .kernel(kernel)
            .expect("the kernel exists")
            .params(args)
            .expect("arguments fit");
        let launch = Launch {
            grid,
            block,
            shared_bytes: self.shared_bytes,
            params,
        };
        run(&self.module, kernel, &launch, &mut self.memory, &self.options)
    }

    pub fn run(&mut self, kernel: &str, grid: u32, block: u32, args: &[Arg<'_>]) -> Counters {
        self.launch(kernel, [grid, 1, 1], [block, 1, 1], args)
            .unwrap_or_else(|fault| panic!("{fault}"))
    }

    pub fn fault(&mut self, kernel: &str, grid: u32, block: u32, args: &[Arg<'_>]) -> Fault {
        self.launch(kernel, [grid, 1, 1], [block, 1, 1], args)
            .expect_err("a fault is planted")
    }

    pub fn read_words(&self, address: u64, count: usize) -> Vec<u32> {
        let mut bytes = vec![0; count * 4];
        self.memory
            .read(address, &mut bytes)
            .unwrap_or_else(|error| panic!("{error}"));
        bytes
            .chunks(4)
            .map(|four| u32::from_le_bytes(four.try_into().expect("four bytes")))
            .collect()
    }

    pub fn read_wides(&self, address: u64, count: usize) -> Vec<u64> {
        let words = self.read_words(address, count * 2);
        words
            .chunks(2)
            .map(|two| u64::from(two[0]) | u64::from(two[1]) << 32)
            .collect()
    }

    pub fn read_floats(&self, address: u64, count: usize) -> Vec<f32> {
        self.read_words(address, count)
            .into_iter()
            .map(f32::from_bits)
            .collect()
    }
}

/// Reproducible random words.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }

    pub fn words(&mut self, count: usize) -> Vec<u32> {
        (0..count).map(|_| self.next()).collect()
    }

    /// Between -1 and 1, a multiple of 2^-20.
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 11) as f32 / (1 << 20) as f32 - 1.0
    }

    pub fn units(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.unit()).collect()
    }
}

/// A half's value by IEEE 754's definition.
pub fn half_value(half: u32) -> f64 {
    let (exponent, fraction) = ((half >> 10 & 31) as i32, f64::from(half & 0x3ff));
    let size = match exponent {
        0 => fraction * 2_f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1024.0 + fraction) * 2_f64.powi(exponent - 25),
    };
    if half & 0x8000 != 0 { -size } else { size }
}

/// The nearest half of a value, ties to even, by counting units.
pub fn nearest_half(value: f64) -> u32 {
    if value.is_nan() {
        return 0x7fff;
    }
    let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
    let size = value.abs();
    if size >= 65520.0 {
        return sign | 0x7c00;
    }
    let mut exponent = 0;
    while exponent < 29 && size >= 2_f64.powi(exponent - 13) {
        exponent += 1;
    }
    let unit = 2_f64.powi(exponent - 24);
    let units = (size / unit).round_ties_even() as u32;
    // A count of 2048 units is the next exponent's first: the sum carries.
    if exponent == 0 {
        sign | units
    } else {
        sign | (((exponent as u32) << 10) + units)
    }
}

/// Random halves: any bits, or (`small`) values of like size, so that f64 holds sums of their products exactly.
pub fn halves(random: &mut Random, count: usize, small: bool) -> Vec<u32> {
    (0..count)
        .map(|_| {
            let bits = random.next() & 0xffff;
            if small {
                bits & 0x83ff | (10 + (random.next() >> 20) % 10) << 10
            } else {
                bits
            }
        })
        .collect()
}

pub fn pairs(halves: &[u32]) -> Vec<u32> {
    halves.chunks(2).map(|pair| pair[0] | pair[1] << 16).collect()
}

/// A kernel `k` of hand-written PTX: `pa` and `pb` are addresses, `n` a number; registers of every kind are there.
pub fn handwritten(declarations: &str, body: &str) -> String {
    format!(
        ".version 8.8\n.target sm_70\n.address_size 64\n.extern .shared .align 16 .b8 pool[];\n{declarations}\n\
         .visible .entry k(.param .u64 pa, .param .u64 pb, .param .u32 n)\n{{\n\
         .reg .pred %p<8>; .reg .b16 %h<8>; .reg .b32 %r<32>; .reg .f32 %f<16>; .reg .b64 %d<32>;\n\
         ld.param.u64 %d1, [pa]; ld.param.u64 %d2, [pb]; ld.param.u32 %r1, [n];\n\
         mov.u32 %r2, %tid.x; mul.wide.u32 %d3, %r2, 4; add.s64 %d4, %d1, %d3; add.s64 %d5, %d2, %d3;\n\
         mov.u64 %d6, pool; add.s64 %d7, %d6, %d3; and.b32 %r3, %r2, 31; shr.u32 %r4, %r2, 5;\n\
         {body}\nret;\n}}\n"
    )
}

/// Runs hand-written PTX with `a` (written) and `b` (not written), 256 bytes each, and 1024 bytes of shared memory.
pub fn try_body(declarations: &str, body: &str, threads: u32) -> Result<(), Box<Fault>> {
    let mut bench = Bench::new(&handwritten(declarations, body));
    bench.shared_bytes = 1024;
    bench.options.steps_max = 20_000;
    let a = bench.words("a", &(0..64).collect::<Vec<_>>());
    let b = bench.empty("b", 256);
    let args = [Arg::Ptr(a), Arg::Ptr(b), Arg::U32(5)];
    bench
        .launch("k", [1, 1, 1], [threads, 1, 1], &args)
        .map(|_| ())
        .map_err(Box::new)
}

pub fn fault(body: &str, threads: u32) -> Fault {
    *try_body("", body, threads).expect_err(body)
}

pub fn clean(body: &str, threads: u32) {
    if let Err(fault) = try_body("", body, threads) {
        panic!("{body}: {fault}");
    }
}
