"""headway data: prepares text for training, and inspects it."""

from __future__ import annotations

from collections.abc import Callable

from headway.cli.command_group import ExampleCommand, plain_app
from headway.cli.data.prepare import prepare
from headway.cli.data.sample import sample
from headway.cli.data.show import show
from headway.cli.data.tokenizer import tokenizer
from headway.cli.data.verify import verify

app = plain_app(help="Prepare data for training, and inspect it.", no_args_is_help=True)
EXAMPLES: dict[Callable[..., None], tuple[str, str]] = {
    prepare: (
        "headway data prepare text.jsonl --into set --tokenizer gpt2",
        "headway data prepare 's3://bucket/text/*.jsonl' --on lab --into c4 --tokenizer gpt2",
    ),
    tokenizer: (
        "headway data tokenizer text.jsonl --vocab 8192 --into tokenizer",
        "headway data tokenizer text.jsonl --vocab 30000 --masked --into tokenizer",
    ),
    show: ("headway data show set", "headway data show set --sequence-length 512"),
    sample: ("headway data sample set", "headway data sample set -n 3 --documents"),
    verify: ("headway data verify set", "headway data verify s3://bucket/set --json"),
}
for command, examples in EXAMPLES.items():
    app.command(cls=ExampleCommand, epilog="\n".join(examples))(command)
