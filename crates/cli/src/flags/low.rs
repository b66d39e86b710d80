//! The command line as typed. Each long flag `--some-name` is also the environment variable `GALVANI_SOME_NAME` and the
//! key `some-name` of the configuration file; `layers` adds those, so that a flag is written down once.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};

/// Serves large language models: `galvani run "hello"` answers once, `galvani serve` opens an OpenAI-compatible port.
#[derive(Debug, Parser)]
#[command(
    name = "galvani",
    version,
    propagate_version = true,
    arg_required_else_help = true
)]
pub struct Low {
    /// Configuration file (TOML). Without it, `galvani/galvani.toml` in the user's configuration folder, if there.
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// The commands.
#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant)] // one value a process
pub enum Verb {
    /// Answer one prompt and leave
    Run(RunArgs),
    /// Talk with a model, line by line
    Chat(ChatArgs),
    /// Open the OpenAI-compatible port and the chat page
    Serve(ServeArgs),
    /// Fetch a model from the hub or a URL
    Pull(PullArgs),
    /// List the models in the cache
    List(ListArgs),
    /// Describe a model: family, sizes, tensors, graph
    Show(ShowArgs),
    /// Say what a model needs, from its headers alone
    Plan(PlanArgs),
    /// Measure prefill and decode
    Bench(BenchArgs),
    /// Measure perplexity, or the divergence from another checkpoint
    Eval(EvalArgs),
    /// Print the settings in force
    Config(ConfigArgs),
    /// Check this machine
    Doctor(DoctorArgs),
    /// Print a completion script
    Completions(CompletionsArgs),
}

/// Which model, and where models are kept.
#[derive(Debug, Clone, Args)]
pub struct ModelArgs {
    /// Model: a file, a folder, `user/model[:quant]` of the hub, or a URL [default: SmolLM2-135M-Instruct]
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub store: StoreArgs,
}

/// Where models are kept and fetched from.
#[derive(Debug, Clone, Args)]
pub struct StoreArgs {
    /// Folder of the hub cache [default: $HF_HUB_CACHE, $HF_HOME/hub, ~/.cache/huggingface/hub]
    #[arg(long, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
    /// Address of the hub [default: $HF_ENDPOINT, https://huggingface.co]
    #[arg(long, value_name = "URL")]
    pub hub: Option<String>,
    /// Revision (branch, tag or commit) of a hub model
    #[arg(long, value_name = "REV", default_value = "main")]
    pub revision: String,
    /// Never use the network
    #[arg(long)]
    pub offline: bool,
    /// No progress bars and notes
    #[arg(short, long)]
    pub quiet: bool,
}

/// How numbers are computed on the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MathFlag {
    /// Integer dot products on quantised activations.
    Fast,
    /// Everything in f32.
    Exact,
    /// Plain loops, one thread: slow, and what everything else is checked against.
    Reference,
}

/// How the model is run.
#[derive(Debug, Clone, Args)]
pub struct ComputeArgs {
    /// Compute threads [default: one a core]
    #[arg(short, long, value_name = "N")]
    pub threads: Option<usize>,
    /// Arithmetic: `fast` (int8 activations), `exact` (f32) or `reference` (plain loops)
    #[arg(long, value_enum, default_value = "fast", value_name = "MATH")]
    pub cpu_math: MathFlag,
    /// Force an instruction set instead of the best one found
    #[arg(long, value_name = "ISA")]
    pub isa: Option<String>,
    /// Longest sequence, tokens [default: the model's, as far as memory allows]
    #[arg(short, long, value_name = "TOKENS")]
    pub context: Option<usize>,
    /// Sequences computed at the same time [default: 16 for serve, else 1]
    #[arg(long, value_name = "N")]
    pub sequences: Option<usize>,
    /// Most tokens in one step (the width of a prefill chunk)
    #[arg(long, value_name = "TOKENS", default_value_t = 512)]
    pub step_tokens: usize,
    /// Tokens in a page of the key/value pool; a power of two of at least 16
    #[arg(long, value_name = "TOKENS", default_value_t = 16)]
    pub page_tokens: usize,
    /// Size of the key/value pool, MiB [default: the sequences at full context, at most half of the free memory]
    #[arg(long, value_name = "MIB")]
    pub cache_memory: Option<usize>,
    /// Reuse computed prefixes of earlier requests
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set)]
    pub prefix_cache: bool,
    /// Refuse to go on where a slower kernel or a guess would be taken
    #[arg(long)]
    pub strict: bool,
}

/// How tokens are chosen by `run` and `chat`.
#[derive(Debug, Clone, Args)]
pub struct SampleArgs {
    /// Most tokens of an answer
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1024)]
    pub tokens: usize,
    /// 0 always takes the likeliest token [default: the model's own, else 0.7]
    #[arg(long, value_name = "T")]
    pub temperature: Option<f32>,
    /// Choose among the K likeliest; 0 is all
    #[arg(long, value_name = "K")]
    pub top_k: Option<usize>,
    /// Choose among the likeliest that make up this share
    #[arg(long, value_name = "P")]
    pub top_p: Option<f32>,
    /// Drop tokens below this share of the likeliest one
    #[arg(long, value_name = "P")]
    pub min_p: Option<f32>,
    /// Divide the logits of tokens already seen
    #[arg(long, value_name = "X")]
    pub repetition_penalty: Option<f32>,
    /// Start of the random numbers [default: from the clock]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// System message
    #[arg(short, long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Chat template in place of the model's
    #[arg(long, value_name = "FILE")]
    pub chat_template: Option<PathBuf>,
}

/// `run`
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// The prompt; `-` or nothing reads standard input
    #[arg(value_name = "PROMPT", conflicts_with = "prompt")]
    pub positional: Option<String>,
    /// Same as PROMPT
    #[arg(long, value_name = "TEXT")]
    pub prompt: Option<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub model: ModelArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub compute: ComputeArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub sample: SampleArgs,
    /// Continue the text as it is, without the chat template
    #[arg(long)]
    pub raw: bool,
    /// Print counts and speeds after the answer
    #[arg(long)]
    pub verbose: bool,
}

/// `chat`
#[derive(Debug, Clone, Args)]
pub struct ChatArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub model: ModelArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub compute: ComputeArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub sample: SampleArgs,
    /// Print counts and speeds after each answer
    #[arg(long)]
    pub verbose: bool,
}

/// The HTTP side of `serve`.
#[derive(Debug, Clone, Args)]
pub struct HttpArgs {
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    pub host: IpAddr,
    /// Port to listen on; 0 takes a free one
    #[arg(long, default_value_t = 8080)]
    pub port: u16,
    /// Name of the model in answers (may be repeated)
    #[arg(long, value_name = "NAME")]
    pub name: Vec<String>,
    /// Key that requests must carry (may be repeated)
    #[arg(long, value_name = "KEY", hide_env_values = true)]
    pub api_key: Vec<String>,
    /// File with one key a line
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Origin that browsers may call from (may be repeated; `*` is any)
    #[arg(long, value_name = "ORIGIN")]
    pub cors_origin: Vec<String>,
    /// Requests that may wait; more are answered with 429
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub queue: usize,
    /// Largest request body, MiB
    #[arg(long, value_name = "MIB", default_value_t = 8)]
    pub body_limit: usize,
    /// Seconds that running requests get after SIGTERM
    #[arg(long, value_name = "S", default_value_t = 30)]
    pub drain_seconds: u64,
    /// The chat page at `/`
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set)]
    pub web: bool,
    /// Chat template in place of the model's
    #[arg(long, value_name = "FILE")]
    pub chat_template: Option<PathBuf>,
}

/// `serve`
#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    /// Same as --model
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    pub positional: Option<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub model: ModelArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub compute: ComputeArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub http: HttpArgs,
}

/// `pull`
#[derive(Debug, Clone, Args)]
pub struct PullArgs {
    /// `user/model[:quant]` or a URL [default: the default model]
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    pub positional: Option<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub model: ModelArgs,
    /// Expected SHA-256 of a URL's file
    #[arg(long, value_name = "HEX")]
    pub sha256: Option<String>,
}

/// `list`
#[derive(Debug, Clone, Args)]
pub struct ListArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub store: StoreArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `show`
#[derive(Debug, Clone, Args)]
pub struct ShowArgs {
    /// Same as --model
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    pub positional: Option<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub model: ModelArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub compute: ComputeArgs,
    /// Print the graph
    #[arg(long)]
    pub graph: bool,
    /// Print the planned buffers
    #[arg(long)]
    pub plan: bool,
    /// List every tensor
    #[arg(long)]
    pub tensors: bool,
}

/// `plan`
#[derive(Debug, Clone, Args)]
pub struct PlanArgs {
    /// Same as --model
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    pub positional: Option<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub model: ModelArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub compute: ComputeArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Form of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReportForm {
    /// Aligned columns.
    Table,
    /// One JSON document.
    Json,
    /// A Markdown table.
    Markdown,
}

/// `bench`
#[derive(Debug, Clone, Args)]
pub struct BenchArgs {
    /// Same as --model
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    pub positional: Option<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub model: ModelArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub compute: ComputeArgs,
    /// Prompt lengths to measure, separated by commas (0 none)
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "512")]
    pub prefill: Vec<usize>,
    /// Tokens to decode, separated by commas (0 none)
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "128")]
    pub decode: Vec<usize>,
    /// Sequences decoding at the same time, separated by commas
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1")]
    pub streams: Vec<usize>,
    /// Positions already in the cache before a decode measurement
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub depth: usize,
    /// Times each row is measured; the median is reported
    #[arg(short, long, value_name = "N", default_value_t = 5)]
    pub repetitions: usize,
    /// Form of the report
    #[arg(short, long, value_enum, default_value = "table")]
    pub output: ReportForm,
    /// Also write a chart
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// `eval`
#[derive(Debug, Clone, Args)]
pub struct EvalArgs {
    /// Text file to score
    #[arg(
        value_name = "TEXT",
        conflicts_with = "text",
        required_unless_present = "text"
    )]
    pub positional: Option<PathBuf>,
    /// Same as TEXT
    #[arg(long, value_name = "FILE")]
    pub text: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub model: ModelArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub compute: ComputeArgs,
    /// Tokens in a window; the second half of each is scored
    #[arg(short, long, value_name = "TOKENS", default_value_t = 512)]
    pub window: usize,
    /// Most windows to score
    #[arg(long, value_name = "N")]
    pub windows: Option<usize>,
    /// Also report the divergence from this checkpoint's distribution
    #[arg(long, value_name = "MODEL")]
    pub against: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `config`
#[derive(Debug, Clone, Args)]
pub struct ConfigArgs {
    /// Say where each value came from
    #[arg(long)]
    pub origin: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub serve: ServeArgs,
}

/// `doctor`
#[derive(Debug, Clone, Args)]
pub struct DoctorArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub store: StoreArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `completions`
#[derive(Debug, Clone, Args)]
pub struct CompletionsArgs {
    /// Shell to write for
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}
