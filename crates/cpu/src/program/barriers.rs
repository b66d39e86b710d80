//! Where workers have to wait for each other.
//!
//! Between two barriers each worker runs ahead on its own. That is right as long as no worker reads or overwrites what
//! another one still writes or reads: two accesses to the same memory, one of them a write, need a barrier between
//! them, unless both are shared out by the same rows of the same memory, so that each worker meets only its own work.

use galvani_graph::{Dim, Extent};

use super::stage::{Access, Input, Kernel, Memory, Place, Resource, Stage};

/// Sets each stage's `barrier`.
pub(super) fn place_barriers(stages: &mut [Stage], extent: Extent) {
    let mut open: Vec<Access> = Vec::new();
    for stage in stages {
        let accesses = accesses(&stage.kernel, extent);
        stage.barrier = accesses
            .iter()
            .any(|new| open.iter().any(|old| conflict(old, new)));
        if stage.barrier {
            open.clear();
        }
        open.extend(accesses);
    }
}

fn conflict(a: &Access, b: &Access) -> bool {
    if !a.write && !b.write {
        return false;
    }
    let same_rows = a.rows.is_some() && a.rows == b.rows;
    match (a.resource, b.resource) {
        (
            Resource::Arena { start, end, buffer },
            Resource::Arena {
                start: first,
                end: last,
                buffer: other,
            },
        ) => start < last && first < end && !(same_rows && buffer == other),
        (a, b) => a == b && !same_rows,
    }
}

fn accesses(kernel: &Kernel, extent: Extent) -> Vec<Access> {
    let tokens = Some(Dim::Tokens);
    let read = |place: Place, rows: bool| at(place, extent, false, rows);
    let write = |place: Place, rows: bool| at(place, extent, true, rows);
    let other = |resource: Resource, write: bool, rows: Option<Dim>| Access {
        resource,
        write,
        rows,
    };
    let input = |input: &Input| {
        let mut all = vec![read(input.place, false)];
        all.extend(input.acts.map(|acts| other(Resource::Acts(acts), false, None)));
        all
    };
    match kernel {
        Kernel::Angles { table, .. } => vec![write(*table, true)],
        Kernel::Embed { out, .. } => vec![write(*out, true)],
        Kernel::RmsNorm { x, out, .. } => vec![read(*x, true), write(*out, true)],
        Kernel::Quantise { place, acts, .. } => {
            // The buffer holds one input after the other, each with rows of its own: never the same ones.
            vec![read(*place, true), other(Resource::Acts(*acts), true, None)]
        }
        Kernel::Linear { input: x, out, .. } | Kernel::LinearGated { input: x, out, .. } => {
            [input(x), vec![write(*out, false)]].concat()
        }
        Kernel::LinearAdd {
            input: x,
            residual,
            out,
            ..
        } => [input(x), vec![read(*residual, false), write(*out, false)]].concat(),
        Kernel::Pointwise {
            a,
            b,
            out,
            by_columns,
            ..
        } => {
            vec![
                read(*a, !by_columns),
                read(*b, !by_columns),
                write(*out, !by_columns),
            ]
        }
        Kernel::Rope { x, table, out, .. } => vec![read(*x, true), read(*table, true), write(*out, true)],
        Kernel::Store { cache, k, v } => {
            vec![
                read(*k, true),
                read(*v, true),
                other(Resource::Cache(*cache), true, tokens),
            ]
        }
        Kernel::Attend { cache, q, out, .. } => {
            vec![
                read(*q, false),
                other(Resource::Cache(*cache), false, None),
                write(*out, false),
            ]
        }
        Kernel::TakeRows { x, out } => vec![read(*x, false), write(*out, true)],
        Kernel::Route { logits, out, .. } => vec![read(*logits, true), write(*out, true)],
        Kernel::Group { routes, .. } => {
            vec![read(*routes, false), other(Resource::Groups, true, None)]
        }
        Kernel::ExpertsGated { input: x, out, .. } => [
            input(x),
            vec![other(Resource::Groups, false, None), write(*out, false)],
        ]
        .concat(),
        Kernel::ExpertsDown { input: x, slots, .. } => [
            input(x),
            vec![other(Resource::Groups, false, None), write(*slots, false)],
        ]
        .concat(),
        Kernel::Combine {
            slots, routes, out, ..
        } => {
            vec![read(*slots, true), read(*routes, true), write(*out, true)]
        }
        Kernel::CopyOut { x, out } => vec![read(*x, true), write(*out, true)],
    }
}

/// An access of all rows of `place`; `rows` when workers share it by its outermost dimension.
fn at(place: Place, extent: Extent, write: bool, rows: bool) -> Access {
    let count = place.outer.resolve(extent);
    let resource = match place.memory {
        Memory::Logits => Resource::Logits,
        Memory::Arena => Resource::Arena {
            start: place.offset,
            end: place.offset + count.saturating_sub(1) * place.stride + place.len,
            buffer: place.buffer,
        },
    };
    Access {
        resource,
        write,
        rows: rows.then_some(place.outer),
    }
}
