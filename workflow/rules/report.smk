rule pages:
    input:
        f"{REPORT}/results.json",
        f"{REPORT}/timings.json",
        f"{REPORT}/config.json",
        f"{REPORT}/trials.parquet",
    output:
        page=f"{REPORT}/README.md",
        samples=f"{REPORT}/samples.md",
        card=f"{REPORT}/model-card.md",
    log:
        f"logs/{RUN}/pages.log",
    conda:
        "../../environment.yml"
    resources:
        mem_mb=1000,
    params:
        code=FLOW.pages_code(),
    shell:
        "kvatlas pages --code {params.code} --output {output.page} > {log} 2>&1"
