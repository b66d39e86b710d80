//! Why a checkpoint is not a model we know.

use galvani_graph::GraphError;
use galvani_weights::LoadError;

/// What is wrong with a checkpoint, as a model.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The config or the container.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Shapes that do not fit together.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A family that is not here.
    #[error("{origin}: model_type is \"{model_type}\"; supported: {known}")]
    Family {
        /// The file.
        origin: String,
        /// Its type.
        model_type: String,
        /// Types in the registry.
        known: String,
    },
    /// A tensor the family needs is not there.
    #[error("{origin}: tensor `{name}` is missing (shape {wanted:?})")]
    MissingTensor {
        /// The file.
        origin: String,
        /// Canonical name.
        name: String,
        /// Shape it should have.
        wanted: Vec<usize>,
    },
    /// A tensor has another shape than the config says.
    #[error("{origin}: tensor `{name}` has shape {got:?}, the config says {wanted:?}")]
    TensorShape {
        /// The file.
        origin: String,
        /// Canonical name.
        name: String,
        /// Shape in the file.
        got: Vec<usize>,
        /// Shape that follows from the config.
        wanted: Vec<usize>,
    },
    /// Tensors that the family does not know.
    #[error("{origin}: {count} tensors are not understood: {names}")]
    UnusedTensors {
        /// The file.
        origin: String,
        /// How many.
        count: usize,
        /// The first of them.
        names: String,
    },
}
