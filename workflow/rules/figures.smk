# The pictures that readers see are in the report's folder; `snakemake --report` embeds its own copies.
rule figure:
    input:
        results=f"{REPORT}/results.json",
        trials=f"{REPORT}/trials.parquet",
    output:
        stamp=f"{RESULTS}/figures/{{figure}}.json",
        pictures=report(
            directory(f"{RESULTS}/figures/{{figure}}"),
            patterns=["{picture}.png"],
            caption="../report/figure.rst",
            category="Figures",
            labels=FLOW.figure_labels,
        ),
    log:
        f"logs/{RUN}/figure/{{figure}}.log",
    conda:
        "../../environment.yml"
    resources:
        mem_mb=1000,
    params:
        code=FLOW.step_code("figure", "figure"),
        title=FLOW.figure_title,
        caption=FLOW.figure_caption,
    shell:
        "kvatlas job figure --name {wildcards.figure} --results {input.results} --trials {input.trials} --code {params.code} --output {output.stamp} > {log} 2>&1"
