# The paper's comparison at a small scale, as rules: PASTA, its sequential baseline and the other
# methods on one base model, with the same prompts, tokens and trials for all.
#
# runs/paper-small.sh sets the variables and says what they mean. A step has a name (what --only
# takes), a file that is there when the step is done, steps that it needs, and a command. Files are
# order-only prerequisites: a step whose file exists is never made again. The steps stand here in
# the order in which compute is spent: seeds (PASTA, then the other methods), trials, ablations.
SHELL := bash
PYTHON ?= python
PASTA ?= $(PYTHON) -m pasta_lm
OUT ?= build/paper
BASE ?=
SEEDS ?= 0
PROMPTS ?= 8400
TIMED ?= 10
SAMPLED ?=
JOBS ?= 1
TINY ?=

# The paper's lambda; the run with the first one samples round one for all others.
WEIGHTS := 4 1 2 8 inf
FIRST := 4
EMPTY :=
SPACE := $(EMPTY) $(EMPTY)
COMMA := ,

# The toy is a model with random weights whose tags and end-of-text are likely (paper_tiny.py):
# training must not undo that, because a sample that a limit cut is not learned from.
TOY_SFT := train.steps=3 train.learning_rate=1e-4 train.log_steps=1 data.max_tokens=1024
TOY_BON := data.tasks.num_prompts=6 rollouts.samples=5 rollouts.max_tokens=48 data.max_tokens=2048 \
    train.epochs= train.steps=2 train.log_steps=1 score.efficiency=speedup
TOY_SHAPE := runs/recipes/llama-tiny.json
SHAPE := $(if $(TINY),$(TOY_SHAPE),benchmarks/shapes/llama-125m.json)
# How many answers the toy times, where a page needs clocks at all.
TIMED_TOY := $(if $(TINY),1)

# --- how steps are written down

# step NAME, FILE, NEEDS, COMMAND, OUTPUTS, CLOCK: the first of OUTPUTS gets the standard output if
# it ends in .json; each is written as FILE.part and renamed when the command has ended well. CLOCK
# is not empty for a step that measures time: nothing may run beside it.
define step_rules
FILE/$1 := $2
STEPS += $1
GROUP/$1 := $(GROUP)
NEEDS/$1 := $(strip $3)
COMMAND/$1 := $4
CLOCK/$1 := $6
.PHONY: $1
$1: $2
$2: | $(foreach need,$3,$(FILE/$(need)))
	@OUTPUTS='$5' runs/paper_small/step.sh $1 $2 $4
endef
step = $(eval $(call step_rules,$(strip $1),$(strip $2),$3,$(strip $4),$(strip $5),$(strip $6)))

# sets CHANGES: the flags that change a recipe.
sets = $(foreach change,$1,'--set=$(change)')
# tasks_seed SEED, STAGE: no two training seeds and no two stages draw the same tasks.
tasks_seed = $(if $(filter 0,$1),$2,$(1)0$(2))

# FROM is the base of the finetunings that follow, and FROM_STEP the step that makes it, if one does.
FROM = $(BASE)
FROM_STEP = $(BASE_STEP)

# sft NAME, RECIPE, SEED, CHANGES: a finetuning of the base.
sft = $(eval FOLDER/$1 := $(OUT)/$1/model)$(call step,$1,$(OUT)/$1/model/model.safetensors,$\
    $(FROM_STEP),$(PASTA) train sft runs/recipes/$2.toml --resume $(call sets,model.base=$(FROM) $\
    data.tasks.seed=$(call tasks_seed,$3,1) train.seed=$3 $(if $(TINY),$(TOY_SFT)) $4 $\
    train.out=$(OUT)/$1))

# bon_command NAME OF THE RUN, RECIPE, SEED, STEP OF ITS BASE, ROUNDS, CHANGES. Samples are compared
# with the answers of AGAINST, a step; usually the baseline of the seed.
AGAINST = seed-$1/baseline
bon_command = $(PASTA) train preference runs/recipes/$2.toml --resume $(call sets,$\
    model.base=$(FOLDER/$4) model.baseline=$(FOLDER/$(call AGAINST,$3)) $\
    data.tasks.seed=$(call tasks_seed,$3,2) train.seed=$3 $\
    $(if $(SAMPLED),data.tasks.num_prompts=$(SAMPLED)) train.rounds=$5 $\
    $(if $(TINY),$(TOY_BON)) $6 train.out=$(OUT)/$1)

# bon NAME, RECIPE, SEED, STEP OF ITS BASE, CHANGES, RUN WHOSE SAMPLES OF ROUND ONE IT TAKES, ROUNDS
bon = $(eval FOLDER/$1 := $(OUT)/$1/round-$(or $7,2)/model)$(call step,$1,$\
    $(OUT)/$1/round-$(or $7,2)/model/model.safetensors,$4 $(call AGAINST,$3) $6,$\
    $(call bon_command,$1,$2,$3,$4,$(or $7,2),$(if $6,$\
    rollouts.files=["$(OUT)/$6/round-1/rollouts.jsonl"]) $5))

# weighted RUN, RECIPE, SEED, STEP OF ITS BASE, WEIGHTS: a run of stage two for each weight. No answer
# of the toy has a grade, so that by quality alone none of its samples would be better.
weighted = $(foreach w,$5,$(call bon,$1-$w,$2,$3,$4,score.quality_weight=$(if $(TINY),$\
    $(w:inf=1000.0),$w),$(if $(filter $(FIRST),$w),,$1-$(FIRST))))

# page PAGE, STEP OF THE BASELINE, SPLIT, ONE OF HOW MANY PROMPTS: the baseline answers each split
# once, and all pages with that baseline and split share its records. Only the test split is timed.
share = $(shell echo $$(( $(PROMPTS) / $1 > 0 ? $(PROMPTS) / $1 : 1 )))
define page_rules
BASELINE/$1 := $(FOLDER/$2)
SPLIT/$1 := $3
NUM/$1 := $(call share,$4)
TIMED/$1 := $(if $(or $(TINY),$(filter-out test,$3)),0,$(TIMED))
endef
page = $(eval $(call page_rules,$1,$2,$3,$4))$(if $(SHARED/$2/$3),,$(eval SHARED/$2/$3 := $\
    $1/measure/sequential)$(call answer,$1,sequential,$(FOLDER/$2),sequential,,$2,0))$\
    $(eval SHARED/$1 := $(SHARED/$2/$3))

# answer PAGE, NAME, MODEL FOLDER, STRATEGIES, FLAGS, NEEDS, NUMBER TIMED: a model answers what a page
# asks. Beside clocks, other processes answer what is not timed.
answer = $(call step,$1/measure/$2,$(OUT)/results/$1/$2.json,$6,$\
    $(PASTA) evaluate tasks --model $3 --baseline $(BASELINE/$1) $\
    --strategies $(subst $(SPACE),$(COMMA),$(strip $4)) --split $(SPLIT/$1) --set threads=1 $\
    --num-prompts $(NUM/$1) --num-timed $7 $(if $(TINY),--set max_tokens=48) $5 $\
    $(and $(filter-out 0,$7),$(filter-out 1,$(JOBS)),--set workers=$(JOBS)) $\
    --records $(OUT)/results/$1/$2.jsonl.part --json,$\
    $(OUT)/results/$1/$2.json $(OUT)/results/$1/$2.jsonl,$(filter-out 0,$7))

# measure PAGE, STEP OF THE TRAINING, STRATEGIES, FLAGS, NEEDS, SUFFIX, MODEL FOLDER, NUMBER TIMED
measure = $(call answer,$1,$(notdir $2)$6,$(or $7,$(FOLDER/$2)),sequential $3,$\
    $4 --set baseline_records=$(patsubst %.json,%.jsonl,$(FILE/$(SHARED/$1))),$\
    $2 $(SHARED/$1) $5,$(or $8,$(TIMED/$1)))

# replay NAME, STEP OF THE TRAINING, STRATEGY, TABLE OF THE STRATEGY: the timed answers again at
# another shape, three of each family.
PROGRAMS = $(OUT)/results/seed-0/$1-programs.jsonl
replay = $(call step,programs/$1,$(PROGRAMS),seed-0/measure/$2,$\
    $(PASTA) evaluate export $(OUT)/results/seed-0/$2.jsonl --strategy $3 --out $(PROGRAMS))$\
    $(call step,replay/$1,$(OUT)/results/seed-0/$1-replayed.json,programs/$1 $(BASE_STEP),$\
    $(PASTA) replay $(PROGRAMS) --random $(SHAPE) --tokenizer $(BASE) --strategy $4 $\
    --limit $(if $(TINY),3,63) --threads 1 --json,$(OUT)/results/seed-0/$1-replayed.json,clock)

# step_cost NAME, SHAPE: what a pass of several rows costs.
step_cost = $(call step,step-cost/$1,$(OUT)/results/step-cost-$1.json,,$\
    $(PYTHON) benchmarks/step_cost.py $2 $(OUT)/results/step-cost-$1.json.part $\
    $(if $(TINY),--rounds 1 --widths 1$(COMMA)2),$(OUT)/results/step-cost-$1.json,clock)

# --- one training seed

# PASTA from the noisy set with all weights of quality, and the sequential baseline.
define pasta_steps
$(call page,seed-$1,seed-$1/baseline,test,1)
$(call sft,seed-$1/pasta-noisy,pasta-noisy,$1)
$(call measure,seed-$1,seed-$1/pasta-noisy,pasta)
$(call weighted,seed-$1/pasta-bon,pasta-bon-$(FIRST),$1,seed-$1/pasta-noisy,$(FIRST))
$(foreach stage,tenth round-1,$(call measure,seed-$1,seed-$1/pasta-bon-$(FIRST),pasta,,,-$(stage),$\
    $(OUT)/seed-$1/pasta-bon-$(FIRST)/round-1/model$(if $(filter tenth,$(stage)),-tenth)))
$(call measure,seed-$1,seed-$1/pasta-bon-$(FIRST),pasta,--set bounds=true,,,,$(TIMED_TOY))
$(call weighted,seed-$1/pasta-bon,pasta-bon-$(FIRST),$1,seed-$1/pasta-noisy,$(OTHERS))
$(foreach w,$(OTHERS),$(call measure,seed-$1,seed-$1/pasta-bon-$w,pasta))
$(call bon,seed-$1/baseline-bon,baseline-bon,$1,seed-$1/baseline,$\
    $(if $(TINY),score.quality_weight=1000.0))
$(call measure,seed-$1,seed-$1/baseline-bon,pasta)
$(if $(FOLDER/draft),,$(call draft))
$(call measure,seed-$1,seed-$1/baseline,prompt-lookup draft-model,$\
    --set draft=$(FOLDER/draft),draft,,,$(TIMED_TOY))
endef
OTHERS := $(if $(TINY),inf,$(wordlist 2,9,$(WEIGHTS)))

# The small model that guesses for the baselines of all seeds, trained from nothing.
draft = $(eval FOLDER/draft := $(OUT)/draft/model)$(call step,draft,$\
    $(OUT)/draft/model/model.safetensors,$(BASE_STEP),$\
    $(PASTA) train sft runs/recipes/draft.toml --resume $(call sets,$\
    model.random.tokenizer=$(BASE) $(if $(TINY),$(TOY_SFT)) train.out=$(OUT)/draft))

# APAR and rule-pasta with both stages; Skeleton-of-Thought prompted, finetuned and with its router;
# then the methods by their own data rules, the gold sets, and the other weights.
define other_steps
$(call both_stages,$1,apar-noisy,apar-bon,apar-bon,apar)
$(call both_stages,$1,rule-pasta,rule-pasta-bon,rule-pasta-bon,pasta)
$(call sft,seed-$1/sot-noisy,sot-noisy,$1)
$(call step,seed-$1/sot-router,$(FOLDER/seed-$1/sot-noisy)/router.json,seed-$1/sot-noisy,$\
    $(PASTA) train router $(FOLDER/seed-$1/sot-noisy) --annotator sot_noisy $\
    $(if $(TINY),--num-tasks 40))
$(call measure,seed-$1,seed-$1/sot-noisy,sot sot-router,,seed-$1/sot-router)
$(call measure,seed-$1,seed-$1/baseline,sot,,,-sot)
$(if $(TINY),,$(call both_stages,$1,apar,apar-own-bon,apar-bon,apar))
$(if $(TINY),,$(call both_stages,$1,rule-lines,rule-lines-bon,rule-pasta-bon,pasta))
$(if $(TINY),,$(call finetuned,$1,sot,sot))
$(foreach method,pasta apar sot,$(call finetuned,$1,$(method)-gold,$(method)))
$(if $(TINY),,$(call more_weights,$1,apar-noisy,apar-bon,apar)$\
    $(call more_weights,$1,rule-pasta,rule-pasta-bon,pasta))
endef
# finetuned SEED, RECIPE, STRATEGY
finetuned = $(call sft,seed-$1/$2,$2,$1)$(call measure,seed-$1,seed-$1/$2,$3)
# both_stages SEED, RECIPE, RUN, RECIPE OF STAGE TWO WITHOUT ITS WEIGHT, STRATEGY
both_stages = $(call finetuned,$1,$2,$5)$\
    $(call weighted,seed-$1/$3,$4-$(FIRST),$1,seed-$1/$2,$(FIRST))$\
    $(call measure,seed-$1,seed-$1/$3-$(FIRST),$5)
more_weights = $(call weighted,seed-$1/$3,$3-$(FIRST),$1,seed-$1/$2,$(OTHERS))$\
    $(foreach w,$(OTHERS),$(call measure,seed-$1,seed-$1/$3-$w,$4))

# The hard split, more records than training has seen: grades alone.
define hard_steps
$(call page,hard-$1,seed-$1/baseline,hard,4)
$(foreach w,$(if $(TINY),$(FIRST),$(WEIGHTS)),$(call measure,hard-$1,seed-$1/pasta-bon-$w,pasta))
$(if $(TINY),,$(call measure,hard-$1,seed-$1/pasta-noisy,pasta)$\
    $(call measure,hard-$1,seed-$1/apar-bon-$(FIRST),apar)$\
    $(call measure,hard-$1,seed-$1/rule-pasta-bon-$(FIRST),pasta)$\
    $(call measure,hard-$1,seed-$1/sot-noisy,sot))
endef

# Reference points for speed, with seed 0: the cost of a step, and the answers at another shape.
define reference_steps
$(if $(TINY),,$(call step_cost,base,$(BASE)/config.json))
$(call step_cost,$(notdir $(basename $(SHAPE))),$(SHAPE))
$(call replay,pasta-bon-$(FIRST),pasta-bon-$(FIRST),pasta,pasta)
$(if $(TINY),,$(call replay,perfect-forks,pasta-bon-$(FIRST),'perfect forks',pasta)$\
    $(call replay,apar-bon-$(FIRST),apar-bon-$(FIRST),apar,apar)$\
    $(call replay,rule-pasta-bon-$(FIRST),rule-pasta-bon-$(FIRST),pasta,pasta)$\
    $(call replay,sot-noisy,sot-noisy,sot,sot))
endef

# --- trials of the settings of stage two: one round on development prompts, the same for all

SETTINGS := pair best best-four
SETTING/pair := loss.alpha=0.005 train.learning_rate=5e-5 score.pairs=1
SETTING/best := loss.alpha=1.0 train.learning_rate=2e-4 score.pairs=1
SETTING/best-four := loss.alpha=1.0 train.learning_rate=4e-4 score.pairs=4
# trial RECIPE, STEP OF ITS BASE, STRATEGY
trial = $(call measure,trials,$2,$3)$(foreach s,$(if $(TINY),pair,$(SETTINGS)),$\
    $(call bon,trials/$1-$s,$1,0,$2,$(SETTING/$s),seed-0/$1,1)$(call measure,trials,trials/$1-$s,$3))
define trial_steps
$(call page,trials,seed-0/baseline,dev,2)
$(call trial,pasta-bon-$(FIRST),seed-0/pasta-noisy,pasta)
$(if $(TINY),,$(call trial,apar-bon-$(FIRST),seed-0/apar-noisy,apar)$\
    $(call trial,rule-pasta-bon-$(FIRST),seed-0/rule-pasta,pasta)$\
    $(call trial,baseline-bon,seed-0/baseline,pasta))
endef

# --- ablations: one change at a time to Pasta-BoN with the first weight and training seed 0

MAIN := seed-0/pasta-bon-$(FIRST)
SHAPES := llama gemma qwen
# ablation NAME, STEP OF ITS BASE, CHANGES, RUN WHOSE SAMPLES IT TAKES
ablation = $(call bon,ablations/$1,pasta-bon-$(FIRST),0,$2,$3,$4)$\
    $(call measure,ablations,ablations/$1,pasta)
# retrained NAME, CHANGES OF STAGE ONE, CHANGES OF STAGE TWO
retrained = $(call sft,ablations/$1-sft,pasta-noisy,0,$2)$(call ablation,$1,ablations/$1-sft,$3)
define ablation_steps
$(call page,ablations,seed-0/baseline,test,1)
$(foreach term,speedup harmonic,$(call ablation,efficiency-$(term),seed-0/pasta-noisy,$\
    score.efficiency=$(term),$(MAIN)))
$(call retrained,continue,train.positions=continue,train.positions=continue)
$(call measure,ablations,$(MAIN),pasta,--set positions=rotate,,-rotate)
$(foreach what,topics syncs,$(call retrained,no-$(what),data.tasks.annotator=noisy_without_$(what)))
$(foreach n,2 5 20,$(call ablation,samples-$n,seed-0/pasta-noisy,rollouts.samples=$n))
$(call step,ablations/rounds-4,$(OUT)/$(MAIN)/round-4/model/model.safetensors,$(MAIN),$\
    $(call bon_command,$(MAIN),pasta-bon-$(FIRST),0,seed-0/pasta-noisy,4,$\
    score.quality_weight=$(FIRST)))
$(foreach n,3 4,$(call measure,ablations,ablations/rounds-4,pasta,,,-$n,$\
    $(OUT)/$(MAIN)/round-$n/model))
endef

# shape_steps SHAPE: the same on a base of another shape, trained from random weights.
define shape_steps
$(eval FOLDER/shape-$1/base := $(OUT)/shape-$1/base/model)
$(call step,shape-$1/base,$(FOLDER/shape-$1/base)/model.safetensors,,$(PASTA) train sft $\
    runs/recipes/random.toml --resume $(call sets,$\
    model.random.architecture=runs/recipes/$1-2m.json train.out=$(OUT)/shape-$1/base))
$(eval FROM := $(FOLDER/shape-$1/base))$(eval FROM_STEP := shape-$1/base)
$(eval AGAINST := shape-$1/baseline)
$(call sft,shape-$1/baseline,baseline,0)
$(call page,shape-$1,shape-$1/baseline,test,1)
$(call sft,shape-$1/pasta-noisy,pasta-noisy,0)
$(call measure,shape-$1,shape-$1/pasta-noisy,pasta)
$(call bon,shape-$1/pasta-bon-$(FIRST),pasta-bon-$(FIRST),0,shape-$1/pasta-noisy)
$(call measure,shape-$1,shape-$1/pasta-bon-$(FIRST),pasta)
endef

# --- all steps, in order

ifneq ($(TINY),)
override BASE := $(or $(filter-out $(EMPTY),$(BASE)),$(OUT)/base/model)
endif
GROUP := seed-0
ifeq ($(BASE),$(OUT)/base/model)
BASE_STEP := base
FOLDER/base := $(BASE)
$(call step,base,$(BASE)/model.safetensors,,$(PYTHON) runs/paper_tiny.py $(OUT)/base)
endif
ALL_SEEDS := $(shell printf '%s\n' 0 1 2 $(SEEDS) | awk '!seen[$$0]++')
define seed_steps
$(eval GROUP := seed-$1)
$(call sft,seed-$1/baseline,baseline,$1)
$(call pasta_steps,$1)
$(call other_steps,$1)
$(call hard_steps,$1)
$(if $(filter 0,$1),$(call reference_steps))
endef
$(foreach seed,$(ALL_SEEDS),$(call seed_steps,$(seed)))
GROUP := trials
$(call trial_steps)
GROUP := ablations
$(call ablation_steps)
$(if $(TINY),,$(foreach shape,$(SHAPES),$(call shape_steps,$(shape))))

# plan: every step as a line of name, group, file, clock, needs and command, separated by tabs.
TAB := $(EMPTY)	$(EMPTY)
.PHONY: plan
plan:
	$(foreach s,$(STEPS),$(info $s$(TAB)$(GROUP/$s)$(TAB)$(FILE/$s)$(TAB)$(CLOCK/$s)$(TAB)$(strip $\
	    $(NEEDS/$s))$(TAB)$(COMMAND/$s)))@:
