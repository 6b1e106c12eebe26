//! `skein plan`: who would carry what.

use super::Context;
use crate::{
    control::{Command, PlanRequest},
    error::Result,
    objects::Plan,
    output,
};

/// Show which machines would carry which layers of a model
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  skein plan smollm2-135m --nodes 3")]
pub struct PlanArgs {
    /// Name, id or start of an id
    #[arg(value_name = "MODEL")]
    model: String,
    /// Exactly N stages on N peers; the fewest that fit otherwise
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    nodes: Option<u32>,
    /// Context in tokens [default: 4096 or the model's limit, whichever is less]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    ctx: Option<u32>,
}

impl PlanArgs {
    pub(super) async fn handle(self, context: &Context) -> Result<()> {
        let request = PlanRequest {
            model: self.model,
            nodes: self.nodes,
            ctx: self.ctx,
        };
        let plan: Plan = context.call(Command::Plan(request)).await?;
        context.show(&plan, output::plan);
        Ok(())
    }
}
