# One arm per cell of the group; when all are there and current, the group is verified and its prefill released.
rule verify:
    input:
        FLOW.verify_cells,
    output:
        f"{RESULTS}/verified/{{study}}/{{model}}/{{group}}.json",
    log:
        f"logs/{RUN}/verify/{{study}}/{{model}}/{{group}}.log",
    priority: 20
    conda:
        "../../environment.yml"
    resources:
        mem_mb=500,
    params:
        spec=FLOW.verify_spec,
        code=FLOW.verify_code,
    shell:
        "kvatlas job verify --spec {params.spec:q} --output {output} > {log} 2>&1"


rule embed:
    input:
        FLOW.embed_inputs,
        embedder=FLOW.embedder_file(),
    output:
        f"{RESULTS}/embeddings/{{model}}.jsonl",
    log:
        f"logs/{RUN}/embed/{{model}}.log",
    conda:
        "../../environment.yml"
    threads: FLOW.threads
    resources:
        mem_mb=2500,
        gpu=FLOW.gpus(),
    params:
        spec=FLOW.embed_spec,
        code=FLOW.embed_code(),
    shell:
        "kvatlas job cell --spec {params.spec:q} --code {params.code} --threads {threads} --input embedder={input.embedder} --output {output} > {log} 2>&1"


rule aggregate:
    input:
        FLOW.table_inputs,
    output:
        report(
            f"{RESULTS}/tables/{{study}}.json",
            caption="../report/table.rst",
            category="Tables",
            labels={"Table": "{study}"},
        ),
    log:
        f"logs/{RUN}/aggregate/{{study}}.log",
    conda:
        "../../environment.yml"
    resources:
        mem_mb=2000,
    params:
        spec=FLOW.table_spec,
        code=FLOW.step_code("aggregate", "study"),
    shell:
        "kvatlas job aggregate --study {wildcards.study} --spec {params.spec:q} --code {params.code} --output {output} > {log} 2>&1"


rule results:
    input:
        FLOW.tables(),
        FLOW.grid.verified(),
    output:
        results=report(
            f"{REPORT}/results.json",
            caption="../report/results.rst",
            category="Tables",
            labels={"Table": "all studies"},
        ),
        timings=f"{REPORT}/timings.json",
        config=f"{REPORT}/config.json",
        trials=f"{REPORT}/trials.parquet",
        others=FLOW.data_files(),
    log:
        f"logs/{RUN}/results.log",
    conda:
        "../../environment.yml"
    resources:
        mem_mb=2000,
    params:
        # A function, because a text may hold braces, which are wildcards in a string.
        spec=lambda wildcards: FLOW.results_spec(),
        code=FLOW.step_code("results"),
    shell:
        "kvatlas job results --spec {params.spec:q} --code {params.code} --output {output.results} > {log} 2>&1"


# A target without output: it always runs, also where Snakemake has forgotten how the cells were made.
rule check:
    input:
        [cell.output for cell in FLOW.grid.trial_cells()],
    log:
        f"logs/{RUN}/check.log",
    conda:
        "../../environment.yml"
    resources:
        mem_mb=500,
    params:
        configfile=lambda wildcards: workflow.configfiles[-1],
    shell:
        "kvatlas check --configfile {params.configfile:q} > {log} 2>&1"
