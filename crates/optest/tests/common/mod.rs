//! What the tests of compiled kernels share.

use std::path::PathBuf;

use galvani_cuda::pack::file::Pack;
use galvani_optest::device::interpreter::Interpreter;
use galvani_ptx::MmaOrder;

/// An interpreter over the pack that `GALVANI_PACK` names; without one, nothing, and a line says so.
pub fn interpreter(mma: MmaOrder) -> Option<Interpreter> {
    let named = std::env::var_os("GALVANI_PACK").map(PathBuf::from);
    let Some(path) = named.filter(|path| path.is_file()) else {
        println!("skipped: GALVANI_PACK names no pack");
        return None;
    };
    Some(Interpreter::new(Pack::read(&path).expect("a good pack"), mma, 2))
}
