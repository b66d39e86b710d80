//! Rotary settings as configs write them: `rope_theta` beside `rope_scaling`, or both in `rope_parameters`.

use galvani_graph::{RopeScaling, RopeSpec};
use galvani_weights::{Config, LoadError};

/// The one rotary embedding of a model, `dims` numbers of each head.
pub(crate) fn rope(config: &Config, dims: usize) -> Result<RopeSpec, LoadError> {
    config.require_eq("rope_interleaved", false)?;
    config.require_eq("partial_rotary_factor", 1.0)?;
    let top_theta = config.opt_f32("rope_theta")?;
    let old = config.object("rope_scaling")?;
    match config.object("rope_parameters")? {
        Some(parameters) => spec(&parameters, dims, top_theta),
        None => match old {
            Some(scaling) => spec(&scaling, dims, top_theta),
            None => Ok(RopeSpec {
                dims,
                theta: top_theta.unwrap_or(10_000.0),
                scaling: RopeScaling::None,
            }),
        },
    }
}

/// One object of rotary settings; `theta` is the base given outside of it.
pub(crate) fn spec(parameters: &Config, dims: usize, theta: Option<f32>) -> Result<RopeSpec, LoadError> {
    let theta = parameters.opt_f32("rope_theta")?.or(theta).unwrap_or(10_000.0);
    parameters.require_eq("partial_rotary_factor", 1.0)?;
    let old_name = parameters.opt_str("type")?;
    let kind = parameters
        .opt_str("rope_type")?
        .or(old_name)
        .unwrap_or_else(|| "default".into());
    let scaling = match kind.as_str() {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear {
            factor: positive(parameters, "factor")?,
        },
        "llama3" => RopeScaling::Llama3 {
            factor: positive(parameters, "factor")?,
            low_frequency_factor: positive(parameters, "low_freq_factor")?,
            high_frequency_factor: positive(parameters, "high_freq_factor")?,
            original_context: parameters.usize("original_max_position_embeddings")?,
        },
        "divisors" => {
            let divisors = parameters.opt_f32s("divisors")?.unwrap_or_default();
            if divisors.len() != dims / 2 || divisors.iter().any(|d| !d.is_normal()) {
                return Err(parameters.unsupported("divisors", format!("{} numbers other than 0", dims / 2)));
            }
            RopeScaling::Divisors(divisors)
        }
        "yarn" => yarn(parameters)?,
        _ => {
            let key = if parameters.has("rope_type") {
                "rope_type"
            } else {
                "type"
            };
            return Err(parameters.unsupported(key, "default, linear, llama3, yarn"));
        }
    };
    Ok(RopeSpec { dims, theta, scaling })
}

fn yarn(parameters: &Config) -> Result<RopeScaling, LoadError> {
    parameters.require_eq("truncate", true)?;
    let factor = positive(parameters, "factor")?;
    let magnitude = |scale: f32| {
        if factor > 1.0 {
            0.1 * scale * factor.ln() + 1.0
        } else {
            1.0
        }
    };
    let scales = (
        parameters.opt_f32("mscale")?,
        parameters.opt_f32("mscale_all_dim")?,
    );
    let default = match scales {
        (Some(scale), Some(all)) if scale != 0.0 && all != 0.0 => magnitude(scale) / magnitude(all),
        _ => magnitude(1.0),
    };
    Ok(RopeScaling::Yarn {
        factor,
        original_context: parameters.usize("original_max_position_embeddings")?,
        beta_fast: parameters.f32_or("beta_fast", 32.0)?,
        beta_slow: parameters.f32_or("beta_slow", 1.0)?,
        attention_factor: parameters.f32_or("attention_factor", default)?,
    })
}

fn positive(parameters: &Config, key: &str) -> Result<f32, LoadError> {
    let number = parameters.f32(key)?;
    if number > 0.0 {
        Ok(number)
    } else {
        Err(parameters.unsupported(key, "a number above 0"))
    }
}
