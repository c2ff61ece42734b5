"""Lay out trainings and measurements as steps: same prompts, tokens and trials for all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import found
from steps import Options, Page, Step, part_of

SHARES = {"test": 1, "dev": 2, "hard": 4}
"""One of how many: a split other than the test split has fewer prompts."""
BASE = "random"
"""The base model of ``runs/laptop.sh``, and the recipe of a base of another shape."""

# A toy forks nothing, so that by parallelism no sample would be better than another. Its finetuning
# must not undo that answers end, because a sample that a limit cut is not trained on.
SFT_ON_A_TOY = (
    "train.steps=3",
    "train.learning_rate=1e-6",
    "train.log_steps=1",
    "data.max_tokens=1024",
)
BASE_ON_A_TOY = (
    *("model.random.architecture=runs/recipes/llama-tiny.json", *SFT_ON_A_TOY),
    *("train.steps=40", "train.learning_rate=6e-3"),
)
BON_ON_A_TOY = (
    *("data.tasks.num_prompts=6", "rollouts.samples=5", "rollouts.max_tokens=160"),
    *("data.max_tokens=2048", "train.epochs=", "train.steps=2", "train.log_steps=1"),
    "score.efficiency=speedup",
)


class Plan:
    """Steps by name in the order in which they are to be made, and the pages of their points."""

    def __init__(self, options: Options) -> None:
        """Begin with the base model: found, or the first step."""
        self.options = options
        self.group = "seed-0"
        self.steps: dict[str, Step] = {}
        self.pages: dict[str, Page] = {}
        self.shared: dict[tuple[str, str], Path] = {}
        """By baseline and split, the records of its sequential answers, for all points."""
        self.folders: dict[str, str] = {}
        """By the name of a training, the model folder that it makes."""
        self.base_name = "base"
        made = () if options.is_tiny else (options.laptop / BASE / "model",)
        for folder in (options.base, *made, options.kept):
            if folder is not None and (folder / "model.safetensors").exists():
                self.folders["base"] = str(folder)
                return
        self.train_base("base")

    @property
    def base(self) -> str:
        """Return the folder of the base model from which everything is finetuned."""
        return self.folders[self.base_name]

    def add(
        self,
        name: str,
        command: Sequence[str],
        makes: Path,
        needs: Sequence[str] = (),
        parts: Sequence[Path] = (),
        prints_to: Path | None = None,
        *,
        is_alone: bool = False,
    ) -> str:
        """Add a step of the present group, and return its name; see ``Step``."""
        assert name not in self.steps, name
        self.steps[name] = Step(
            name=name,
            group=self.group,
            command=tuple(command),
            makes=makes,
            needs=tuple(need for need in needs if need in self.steps),
            parts=tuple(parts),
            prints_to=prints_to,
            is_alone=is_alone,
        )
        return name

    def command_of(self, step: str) -> str:
        """Return what is typed to carry out one step with all that it needs."""
        words = (self.options.folders, "runs/paper-small.sh", self.options.flags)
        return " ".join((*filter(None, words), "--only", step))

    # --- trainings

    def train_base(self, name: str, *changes: str) -> str:
        """Add a base model from nothing, and return its name."""
        toy = BASE_ON_A_TOY if self.options.is_tiny else ()
        return self._train("sft", name, BASE, (*toy, *changes), ())

    def sft(self, name: str, recipe: str, seed: int, *changes: str) -> str:
        """Add a finetuning of the base, and return its name.

        What ``runs/laptop.sh`` has trained by the same recipe is taken from there.
        """
        is_usual = name == f"seed-0/{recipe}" and not self.options.is_tiny
        if is_usual and (there := found.model(self.options.laptop, recipe, self.base)):
            self.folders[name] = str(there)
            return name
        own = (f"model.base={self.base}", f"data.tasks.seed={100 * seed + 1}", f"train.seed={seed}")
        toy = SFT_ON_A_TOY if self.options.is_tiny else ()
        return self._train("sft", name, recipe, (*own, *toy, *changes), (self.base_name,))

    def draft(self) -> str:
        """Return the small model that guesses for the baselines of all seeds."""
        if "draft" not in self.steps:
            toy = SFT_ON_A_TOY if self.options.is_tiny else ()
            changes = (f"model.random.tokenizer={self.base}", *toy)
            self._train("sft", "draft", "draft", changes, (self.base_name,))
        return "draft"

    def router(self, name: str, model: str) -> str:
        """Add the router of a model by points, and return its name."""
        folder = self.folders[model]
        few = ("--num-tasks", "40") if self.options.is_tiny else ()
        words = ("train", "router", folder, "--annotator", "sot_noisy", *few)
        return self.add(name, words, Path(folder) / "router.json", (model,))

    def bon(
        self,
        name: str,
        recipe: str,
        seed: int,
        base: str,
        *changes: str,
        baseline: str = "",
        shares: str = "",
        rounds: int = 2,
    ) -> str:
        """Add a run of stage two, and return its name.

        Args:
            name: Of the run.
            recipe: Of stage two.
            seed: Of training.
            base: The finetuning that it begins with.
            changes: Of the recipe.
            baseline: Whose sequential answers samples are held against; the seed's own.
            shares: The run whose samples of round one it takes.
            rounds: How many.
        """
        baseline = baseline or f"seed-{seed}/baseline"
        models = (f"model.base={self.folders[base]}", f"model.baseline={self.folders[baseline]}")
        own = (*models, f"data.tasks.seed={100 * seed + 2}", f"train.seed={seed}")
        if shares:
            file = self.options.out / shares / "round-1" / "rollouts.jsonl"
            own += (f"rollouts.files=[{json.dumps(str(file))}]",)
        num = self.options.num_sampled
        own += () if num is None else (f"data.tasks.num_prompts={num}",)
        toy = BON_ON_A_TOY if self.options.is_tiny else ()
        own = (*own, f"train.rounds={rounds}", *toy, *changes)
        return self._train("preference", name, recipe, own, (base, baseline, shares), rounds)

    def weighted(
        self, run: str, recipe: str, seed: int, base: str, weights: Sequence[str], first: str
    ) -> list[str]:
        """Add stage two for several weights of quality, and return the names of the runs.

        Args:
            run: Their name but for the weight.
            recipe: Of stage two.
            seed: Of training.
            base: The finetuning that they begin with.
            weights: The paper's lambda.
            first: The weight whose run samples round one, for all.
        """
        names = []
        for weight in weights:
            # No answer of a toy has a grade, and by quality alone none would be better.
            is_lost = self.options.is_tiny and weight == "inf"
            changes = (f"score.quality_weight={'1000.0' if is_lost else weight}",)
            shares = "" if weight == first else f"{run}-{first}"
            names.append(self.bon(f"{run}-{weight}", recipe, seed, base, *changes, shares=shares))
        return names

    def _train(
        self,
        stage: str,
        name: str,
        recipe: str,
        changes: Sequence[str],
        needs: Sequence[str],
        rounds: int = 0,
    ) -> str:
        out = self.options.out / name
        folder = out / f"round-{rounds}" / "model" if rounds else out / "model"
        sets = [f"--set={one}" for one in (*changes, f"train.out={out}")]
        words = ("train", stage, f"runs/recipes/{recipe}.toml", "--resume", *sets)
        self.folders[name] = str(folder)
        return self.add(name, words, folder / "model.safetensors", needs)

    # --- measurements

    def page(self, name: str, title: str, baseline: str, split: str = "test") -> None:
        """Add a comparison without points; clocks are those of the test split."""
        options = self.options
        is_test = split == "test"
        num = max(1, options.num_prompts // SHARES[split])
        timed = options.num_timed if is_test and not options.is_tiny else 0
        folder = self.folders[baseline]
        page = Page(name, title, "Pasta-BoN", folder, split, num, timed)
        self.pages[name] = page
        if (folder, split) in self.shared:
            return
        known = None if options.is_tiny else found.graded(options.laptop, folder, split, num)
        if known is None:
            words = (*self._asked(page, folder, "sequential"), "--num-timed", "0")
            step = self._measure(f"{name}/measure/sequential", words, baseline)
            known = self.steps[step].parts[0]
        self.shared[folder, split] = known

    def _asked(self, page: Page, model: str, strategies: str) -> tuple[str, ...]:
        """Return the words that let a model answer what a page asks."""
        words = ("evaluate", "tasks", "--model", model, "--baseline", page.baseline)
        words += ("--strategies", strategies, "--split", page.split, "--threads", "1")
        words += ("--num-prompts", str(page.num_prompts))
        return (*words, "--max-tokens", "48") if self.options.is_tiny else words

    def _measure(self, step: str, words: Sequence[str], *needs: str) -> str:
        """Add a step that answers tasks and keeps records, and return its name."""
        page, _, name = step.partition("/measure/")
        records = self.options.out / "results" / page / f"{name}.jsonl"
        said = records.with_suffix(".json")
        command = (*words, "--records", str(part_of(records)), "--json")
        timed = [words[place + 1] for place, word in enumerate(words) if word == "--num-timed"]
        is_alone = timed[-1] != "0"  # of two the last one counts
        if is_alone and self.options.jobs > 1:  # cores that would idle beside it answer for grades
            command += ("--workers", str(self.options.jobs))
        return self.add(step, command, said, needs, (records, said), said, is_alone=is_alone)

    def point(
        self,
        page: str,
        trained: str,
        name: str,
        method: str,
        label: str = "",
        *,
        strategy: str = "pasta",
        folder: str | None = None,
        suffix: str = "",
        flags: Sequence[str] = (),
        needs: Sequence[str] = (),
    ) -> str:
        """Add a point and the step that measures it, and return the step's name.

        Args:
            page: Where the point stands.
            trained: The training whose model answers.
            name: The point's.
            method: Its method.
            label: What stands beside its mark.
            strategy: Whose answers count; by comma, those after the first are measured too.
            folder: The model's, where it is not the last one of the training.
            suffix: Of the step's name, where a model is measured more than once.
            flags: More words of the command.
            needs: Steps before it, beside the training.
        """
        asked = self.pages[page]
        strategies = dict.fromkeys(("sequential", *strategy.split(",")))
        words = self._asked(asked, folder or self.folders[trained], ",".join(strategies))
        known = self.shared[asked.baseline, asked.split]
        words += ("--num-timed", str(asked.num_timed), *flags)
        words += ("--baseline-records", str(known))
        step = f"{page}/measure/{trained.split('/')[-1]}{suffix}"
        before = [one.name for one in self.steps.values() if known in one.parts]
        self._measure(step, words, trained, *before, *needs)
        return self.point_of(page, step, name, method, label, strategy=strategy.split(",")[0])

    def point_of(
        self,
        page: str,
        step: str,
        name: str,
        method: str,
        label: str = "",
        *,
        strategy: str = "pasta",
    ) -> str:
        """Add a point of answers that a step measures anyway, and return the step's name."""
        measured = self.steps[step]
        point = {
            "name": name,
            "method": method,
            "label": label,
            "model": measured.command[measured.command.index("--model") + 1],
            "strategy": strategy,
            "records": str(measured.parts[0]),
            "command": self.command_of(step),
        }
        self.pages[page].points.append(point)
        return step
