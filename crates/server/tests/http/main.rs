//! The server over scripted models: what a client sees, request by request.

mod bugs;
mod bugs_values;
mod chat;
mod common;
mod completions;
mod constraints;
mod hostile;
mod load;
mod security;
mod service;
mod sockets;
