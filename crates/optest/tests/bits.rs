//! The comparison of a GPU with the interpreter, tried without a GPU: an interpreter against another.

mod common;

use common::interpreter;
use galvani_optest::device::bits;
use galvani_optest::device::cases::linear_cases;
use galvani_ptx::MmaOrder;

/// Every packing kernel, and a format's unpacking, finishing and products, are compared; two alike have no difference, two tensor cores
/// that sum in other ways have one in the products, and in nothing else.
#[test]
fn every_kind_of_row_is_compared_and_a_difference_is_seen() {
    let mut cases = linear_cases().expect("the table is good");
    cases.retain(|case| case.linear.format.name == "nvfp4" && case.linear.n < 70);
    let compare = |second: MmaOrder| {
        let (mut a, mut b) = (interpreter(MmaOrder::EmulatedF32)?, interpreter(second)?);
        Some(bits::compare(&mut a, &mut b, &cases, 5).expect("both run"))
    };
    let (Some(alike), Some(other)) = (compare(MmaOrder::EmulatedF32), compare(MmaOrder::Volta)) else {
        return;
    };
    for row in galvani_cuda::repack::device::rows() {
        assert!(alike.contains_key(&row.symbol), "{}", row.symbol);
    }
    for symbol in [
        "linear_nvfp4_dequant",
        "linear_finish",
        "linear_nvfp4_skinny_mt1",
        "linear_nvfp4_skinny_mt1_half",
        "linear_nvfp4_tiled_m64",
    ] {
        assert!(alike.contains_key(symbol), "{symbol}");
    }
    assert!(alike.values().all(|row| row.different == 0 && row.cases > 0));
    for (symbol, row) in other {
        let product = symbol.contains("skinny") || symbol.contains("tiled");
        assert_eq!(row.different > 0, product, "{symbol}");
    }
}
