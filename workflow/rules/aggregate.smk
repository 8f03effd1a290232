# One arm per cell of the group; when all are there and current, the group is sealed and its prefill released.
rule seal:
    input:
        FLOW.seal_cells,
    output:
        f"{RESULTS}/checked/{{study}}/{{model}}/{{group}}.json",
    log:
        f"logs/{RUN}/seal/{{study}}/{{model}}/{{group}}.log",
    params:
        spec=FLOW.seal_spec,
        code=FLOW.seal_code,
    priority: 20
    resources:
        mem_mb=500,
    conda:
        "../../environment.yml"
    shell:
        "{KVATLAS} seal --spec {params.spec:q} --output {output} > {log} 2>&1"


rule embed:
    input:
        FLOW.model_seals,
        embedder=FLOW.embedder_file(),
    output:
        f"{RESULTS}/embeddings/{{model}}.jsonl",
    log:
        f"logs/{RUN}/embed/{{model}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/embed/{{model}}.tsv"
    params:
        spec=FLOW.embed_spec,
        code=FLOW.embed_code(),
    threads: FLOW.threads
    resources:
        mem_mb=2500,
        gpu=FLOW.gpus(),
    conda:
        "../../environment.yml"
    shell:
        "{KVATLAS} cell --spec {params.spec:q} --code {params.code} --threads {threads} --input embedder={input.embedder} --output {output} > {log} 2>&1"


rule aggregate:
    input:
        FLOW.table_inputs,
    output:
        f"{RESULTS}/tables/{{study}}.json",
    log:
        f"logs/{RUN}/aggregate/{{study}}.log",
    params:
        spec=FLOW.table_spec,
        code=FLOW.table_code,
    resources:
        mem_mb=2000,
    conda:
        "../../environment.yml"
    shell:
        "{KVATLAS} aggregate --study {wildcards.study} --spec {params.spec:q} --code {params.code} --output {output} > {log} 2>&1"


rule results:
    input:
        FLOW.tables(),
        FLOW.grid.seals(),
    output:
        f"{REPORT}/results.json",
        f"{REPORT}/timings.json",
        f"{REPORT}/config.json",
        f"{REPORT}/trials.parquet",
    log:
        f"logs/{RUN}/results.log",
    params:
        spec=FLOW.results_spec(),
        code=FLOW.results_code(),
    resources:
        mem_mb=2000,
    conda:
        "../../environment.yml"
    shell:
        "{KVATLAS} results --spec {params.spec:q} --code {params.code} --output {output[0]} > {log} 2>&1"


# A target without output: it always runs, also where Snakemake has forgotten how the cells were made.
rule check:
    input:
        [cell.output for cell in FLOW.grid.trial_cells()],
    log:
        f"logs/{RUN}/check.log",
    params:
        configfile=workflow.configfiles[-1],
    resources:
        mem_mb=500,
    conda:
        "../../environment.yml"
    shell:
        "{KVATLAS} check --configfile {params.configfile:q} > {log} 2>&1"
